"""Every family of networks of timm and torchvision, and every kind of model of transformers, used under LMS.

    python -m tests.architectures                    # all of them: an hour
    python -m tests.architectures --match timm:vit   # those whose name contains this
    python -m tests.architectures --way infer        # not trained, but used in another of ``ways``

Each is made as small as it can be by rules that know none of them (``networks``, ``small``), and trained for some
steps: in stock PyTorch twice, with LMS where all fits, at a half and at a fifth of its demand, in pages from 1 KiB.
Losses and all weights, or whatever comes of another way, must be equal to the bit.
What the rules cannot make, or feed, is listed and left out.
"""
