"""Measures a target by running it on this machine: one process a trial, results as lines of JSON.

What runs out of memory or crashes is a result. Lower files first:

    ways            ways to train, and which of them a device can do
    dimension       what can be made larger: size, batch, depth, width, tokens
    trial           what is asked of a process, and what came of it
    results         the file of results: written line by line, read again to go on
    samples         what the machine did meanwhile: processor, disk, GPU
    ranks           what several processes of a trial tell, as one
    process         one trial in processes of its own, one for each rank
    child           what runs in such a process: the only part that imports PyTorch
    expected        what ``plan`` says of a trial
    search          the largest that trains, by few trials
    campaign        header, points and all trials of one command
    sheet           results in IBM's columns
"""
