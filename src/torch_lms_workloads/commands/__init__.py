"""The commands that ``torch-lms`` finds by the entry points ``torch_lms.commands``, one a file."""
