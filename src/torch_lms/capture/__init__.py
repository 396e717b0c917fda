"""Sees what PyTorch does to storages, and tells it as events: operations, raw accesses, deaths."""
