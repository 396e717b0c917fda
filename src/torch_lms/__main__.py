"""``python -m torch_lms`` is ``torch-lms``."""

from torch_lms.cli.main import main

main()
