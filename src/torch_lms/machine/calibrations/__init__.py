"""Calibrations that are shipped: one file for each processor, and one for all others."""
