"""What all tests share. Nothing here needs torch."""

import os

# MKL uses fewer threads at times on a busy machine, and with another number of threads it rounds in another way.
os.environ.setdefault("MKL_DYNAMIC", "FALSE")

if "PYTEST_XDIST_WORKER" in os.environ:  # tests side by side: each has a core
    os.environ.setdefault("OMP_NUM_THREADS", "1")
