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

UNREPEATABLE = {
    "linalg.lstsq": "LAPACK leaves some of its workspace in the result",
    "linalg.lstsq.grad_oriented": "LAPACK leaves some of its workspace in the result",
}
"""Run, but may differ: two plain runs in one process differ, too."""

SHARED_UNSAID = {
    "aten::_sparse_coo_tensor_with_dims_and_tensors": "its result holds the very indices and values given, which stay "
    "the same pages",
    "aten::set_.source_Storage": "the tensor has the given storage from then on, and so its page",
    "aten::set_.source_Storage_storage_offset": "the tensor has the given storage from then on, and so its page",
}
"""Operators whose results share an argument's storage without their schema saying so, and why that does no harm."""

_OTHER_GRADIENT = "autograd takes a formula without writes in place, whose sums or strides differ"
_WITH_VECTORS = "singular values are computed together with the vectors, by another routine"
CHANGED_BY_ANY_MODE = {
    "cumprod": _OTHER_GRADIENT,
    "prod": _OTHER_GRADIENT,
    "masked.prod": _OTHER_GRADIENT,
    "_foreach_max": _OTHER_GRADIENT,
    "masked_fill": _OTHER_GRADIENT,
    "ormqr": _OTHER_GRADIENT,
    "nn.LinearCrossEntropyLoss": _OTHER_GRADIENT,
    "linalg.cond": _WITH_VECTORS,
    "linalg.norm": _WITH_VECTORS,
    "linalg.matrix_norm": _WITH_VECTORS,
    "norm.nuc": _WITH_VECTORS,
    "linalg.pinv": _WITH_VECTORS,
    "linalg.pinv.singular": _WITH_VECTORS,
    "pinverse": _WITH_VECTORS,
    "linalg.matrix_rank": f"{_WITH_VECTORS}; into `out=` it writes nothing (a bug of PyTorch)",
    "linalg.matrix_rank.hermitian": "into `out=` it writes nothing (a bug of PyTorch)",
}
"""Equal an empty dispatch mode, not a plain run (N22)."""
