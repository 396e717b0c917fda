"""The workloads, one a file. Each file loads what its own network needs, and no more."""
