"""Everything that a GPU can show, in one command: ``python -m tests.campaign``; see ``docs/gpu.md``."""
