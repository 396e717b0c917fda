"""How a callable of unknown signature may be called: texts, tried in order until stock PyTorch takes one.

``x`` is the tensor in question, ``s`` its storage, ``t`` its typed storage; ``f``, ``i`` and ``b`` are other tensors of
its shape (numbers, indices, a mask).
"""

_FIRST = (
    *("x", "x, x", "x, 0", "x, 1", "x, 2", "x, 0.5", "[x, x]", "x, x, x", "x, 0, i", "x, 0, i, x", "x, 0, i, 1"),
    *("x, i", "x, b", "x, b, x", "x, b, 1", "x, i, x", "x, 0, 1", "x, 0, 1, 1", "x, 0, 1, 2", "x, (4, 4)", "x, (2, 8)"),
    *("x, (0, 1)", "x, (1, 1)", "x, (0,), (1,)", "x, (2, 2), (1, 2)", "x, dim=0", "x, 0, 0", "x, 0, x[0]", "x, x, 0"),
    *("x[0]", "x[0], x[0]", "x, x[0]", "x[0], x", "x, x[0], x[0]", "x, x, x[0]", "x, 1.0, 0", "x, 0.5, 0, 0, 255"),
    *("x[None]", "x[None], x[None]", "x[None], x[None], x[None]", "x, x[None], x[None]", "x[None], 2", "x[0, 0]"),
    *("x[None, None]", "x[None, None], x[None, None]", "x[None, None], 2", "x[None, None], (2, 2)"),
    *("x[None, None, None]", "x[None, None, None], x[None, None, None]", "x[None, None, None], 2"),
    *("'ij,jk->ik', x, x", "x, 'cpu'", "x, torch.float64", "x, f", "x, f, f", "x, i[0]", "i, x", "i[0], x"),
    *("x, [x, x]", "[x, x], [x, x]", "[x, x], 1", "[x, x], [x, x], [x, x]", "[x, x], 0, x", "x, lambda a: a"),
    *("x, x, lambda a, b: a", "x, x, x, lambda a, b, c: a", "x, lambda a: a, 1", "x, 'd'", "x, 'name', 1", "x, (x,)"),
    *("x, x[0], x[0], x[0], x[0], False, 0.1, 1e-5, False", "x, x[0], x[0], x[0], x[0]", "x, (4,), x[0], x[0]"),
    *("x, x[0], i[0], 0, 0, 255", "x, 0.1, 0, torch.quint8", "x, x[0], i[0], 0, torch.quint8", "2, x", "2, x[0], x[0]"),
    *("i, x, (4, 4)", "x, (x, x)", "lambda a: a, x", "lambda a: a, (x,)", "x, 1, 1, 1", "x, (i[0], i[0]), x[0]"),
)
_OTHER = (
    *("f, x", "f, 0, x", "f, 0, x, f", "f, 0, x, 1", "f, f, x", "f, x, 1.0", "f, x, f", "f, x[0]", "f[0], x", "x, f"),
    *("f, x, x", "f, x[0], x[0]", "[f, f], x", "f[None, None], x", "f[None], x[None]", "f[None, None], x[None, None]"),
    *("f, (x, x)", "f, (x, x), f", "f, (x[0], x[0]), f[0]", "0, x", "f, 0.1, x", "f[0], f[0], x[0]", "f, f, f, x"),
)
_ELEMENT = (
    *(
        "x[0, 1], x[0, 1]",
        "f, 0, x[0, 1]",
        "f, 1, x[0, 1]",
        "f, x[0, 1]",
        "f, (x[0, 1], x[0, 1])",
        "[x[0, 1], x[0, 2]]",
    ),
    *("(x[0, 1], 2)", "f, f, x[0, 1]", "x[0, 1], f", "x[0, 1], 4", "0, x[0, 1]", "0, x[0, 1], 5", "(4, 4), x[0, 1]"),
    *("f, x[0, 1], x[0, 2]", "f, 0, 0, x[0, 1]", "f, 0, i, x[0, 1]", "f, b, x[0, 1]"),
)
_STORAGE = (
    "{}",
    "{}, 0",
    "{}, 0, 1",
    "{}, {}",
    "{}, slice(0, 8)",
    "{}, slice(0, 8), 1",
    "{}, 'cpu'",
    "{}, 16",
    "{}, {{}}",
)

_OF_FUNCTIONS = _FIRST, _OTHER, _ELEMENT
_OF_METHODS = ("x", *(pattern for pattern in _FIRST if pattern.startswith("x"))), _OTHER, _ELEMENT
_SPECIAL = {
    "UntypedStorage": (tuple(pattern.format("s", "s") for pattern in _STORAGE),),
    "TypedStorage": (tuple(pattern.format("t", "t") for pattern in _STORAGE),),
    "protocol": (("x",),),
    "Tensor": _OF_METHODS,
}


def groups_of(family: str) -> tuple[tuple[str, ...], ...]:
    """Patterns for callables of ``family``. Of each group the first that stock takes is compared."""
    return _SPECIAL.get(family, _OF_FUNCTIONS)
