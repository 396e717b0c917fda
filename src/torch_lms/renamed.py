"""Attributes that had another name: the old one goes on working, and warns."""

import warnings


def warn_of_old_name(owner: object, old: str, new: str) -> None:
    """Somebody asked ``owner`` for its attribute by the ``old`` name."""
    kind = type(owner).__name__
    warnings.warn(f"{kind}.{old} is called {kind}.{new} now", DeprecationWarning, stacklevel=3)
