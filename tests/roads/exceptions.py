"""The roads that are not called, are looked at less closely, or may differ, each with its reason."""

_COMPILES = "it compiles, which tests of their own cover, and takes seconds"
NOT_CALLED: dict[str, str] = {
    "torch.compile": _COMPILES,
    "torch.cond": _COMPILES,
    "torch.while_loop": _COMPILES,
}
ADDRESSES = frozenset(
    {
        "Tensor.data_ptr",
        "Tensor.const_data_ptr",
        "Tensor.mutable_data_ptr",
        "UntypedStorage.data_ptr",
        "TypedStorage.data_ptr",
        "TypedStorage._data_ptr",
    }
)
"""Their results are addresses of bytes: what is there is compared."""

_IDENTITY = "an address of an object of Python or C++, not of bytes"
IDENTITIES = {
    "Tensor.__hash__": _IDENTITY,
    "Tensor._cdata": _IDENTITY,
    "UntypedStorage.__hash__": _IDENTITY,
    "UntypedStorage._cdata": _IDENTITY,
    "UntypedStorage._weak_ref": _IDENTITY,
    "TypedStorage.__hash__": _IDENTITY,
    "TypedStorage._cdata": _IDENTITY,
    "TypedStorage._weak_ref": _IDENTITY,
}
"""Of their results only the type is compared."""

MAY_DIFFER: dict[tuple[str, str], str] = {}
