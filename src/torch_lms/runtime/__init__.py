"""Performs the pager's actions for real, and wires everything together."""
