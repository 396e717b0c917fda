"""The cases that are excluded or may differ, each with its reason."""

UNINITIALIZED = {
    "empty": "its result is whatever the memory holds",
    "empty_like": "its result is whatever the memory holds",
    "empty_permuted": "its result is whatever the memory holds",
    "empty_strided": "its result is whatever the memory holds",
    "new_empty": "its result is whatever the memory holds",
    "new_empty_strided": "its result is whatever the memory holds",
    "resize_": "what it adds is whatever the memory holds",
    "resize_as_": "what it adds is whatever the memory holds",
}
"""Not run: two plain runs need not be equal."""

UNREPEATABLE: dict[str, str] = {}
"""Run, but may differ: two plain runs in one process differ, too."""

CHANGED_BY_ANY_MODE: dict[str, str] = {}
"""Equal an empty dispatch mode, not a plain run (N22)."""
