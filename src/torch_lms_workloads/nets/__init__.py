"""Networks, one a file."""
