"""What all tests share. Nothing here needs torch."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:  # tests side by side: each has a core
    os.environ.setdefault("OMP_NUM_THREADS", "1")
