"""Real trainers under LMS, against the same without it: one table. See ``python -m tests.trainers --help``."""
