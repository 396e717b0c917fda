"""The demo: stock PyTorch and LMS train the same network on a brain scan, under the same limit of memory.

``torch-lms demo`` runs it. It uses ``torch_lms`` as any program does. Lower files first:

    data        the scan, from nilearn's own files
    train       the training script: plain PyTorch, with one line more for LMS
    report      what was found, as a table, a sentence and JSON
    child       runs the script in a process of its own
    picture     draws a slice of the brain
    runs        the scan, a warm-up, the four runs, the picture
    page        all of it as a report that a browser opens
"""
