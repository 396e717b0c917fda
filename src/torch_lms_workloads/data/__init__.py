"""Data sets: folders of pictures or volumes, as samples to train with and as wholes to predict.

``open.open_data`` and ``open.open_whole`` are the ways in, ``batches`` makes loaders of what they return. Lower files
first; each format is a file:

    draws, files                    random numbers by purpose; files and folders that must be there
    about, source                   what a data set says of itself; where samples come from
    predictions                     how a prediction is written: a palette PNG, a NIfTI file
    pictures, masks, crops          reading, labels, and the part of a picture that is trained with
    segmentation                    pictures and their labels
    volume_files, volumes           the same for volumes
    held_out                        a split for data that come without one
    voc, cityscapes, taco, class_folders, nifti, decathlon, synthetic
    format                          how a format is recognized and opened
    datasets                        ``torch.utils.data.Dataset`` over any of them
    open, single                    by a folder's name; one file alone
    batches                         loaders
"""
