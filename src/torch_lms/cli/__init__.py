"""The command line ``torch-lms``: one file per sub-command, each exporting ``command``."""
