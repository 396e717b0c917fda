"""What runs in the process of a trial: the part of ``bench`` that imports PyTorch.

Lower files first: ``memory`` (limits and peaks), ``hooks`` (saved tensors elsewhere), ``around`` (the ways to train),
``build`` (the target with bytes), ``main`` (a trial, told as events).
"""
