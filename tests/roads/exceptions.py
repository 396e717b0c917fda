"""The roads that are not called, are looked at less closely, or may differ, each with its reason."""

import re
from dataclasses import dataclass

from tests.sweep.exceptions import UNINITIALIZED

_COMPILES = "it compiles, which tests of their own cover, and takes seconds"
_RAW_POINTER = "it takes a pointer or a file descriptor: stock PyTorch crashes when given anything else"
_SHRINKS = "it frees the memory below the tensor: stock PyTorch crashes when the tensor is read again"
NOT_CALLED: dict[str, str] = {
    "torch.compile": _COMPILES,
    "torch.cond": _COMPILES,
    "torch.while_loop": _COMPILES,
    "UntypedStorage.__delitem__": _RAW_POINTER,
    "UntypedStorage._set_cdata": _RAW_POINTER,
    "UntypedStorage._set_from_file": f"{_RAW_POINTER}; protocol._set_from_file gives it a file",
    "UntypedStorage._write_file": f"{_RAW_POINTER}; protocol._write_file gives it a file",
    "UntypedStorage.resize_": f"{_SHRINKS}; protocol.storage resize makes it larger",
    "TypedStorage._set_cdata": _RAW_POINTER,
    "TypedStorage._set_from_file": f"{_RAW_POINTER}; protocol._set_from_file gives it a file",
    "TypedStorage._write_file": f"{_RAW_POINTER}; protocol._write_file gives it a file",
    "TypedStorage._resize_": _SHRINKS,
    "TypedStorage.resize_": _SHRINKS,
    "torch.lobpcg": "it runs operations by the ten thousand, which takes a minute at limit=0",
    "torch.fbgemm_pack_gemm_matrix_fp16": "its result is opaque, and crashes stock PyTorch when looked at; "
    "protocol.fbgemm_pack_gemm_matrix_fp16 multiplies by it",
    **{
        f"{family}.{name}": reason
        for family in ("Tensor", "torch", "torch._C._VariableFunctions")
        for name, reason in UNINITIALIZED.items()
    },
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
_KEY = "what it gives names the storage by the address of its object"
_NAME = "a file descriptor or the name of a file"
IDENTITIES = {
    **{
        f"{kind}.{name}": _IDENTITY
        for kind in ("Tensor", "UntypedStorage", "TypedStorage")
        for name in ("__hash__", "_cdata")
    },
    **{
        f"{kind}.{name}": _KEY
        for kind in ("UntypedStorage", "TypedStorage")
        for name in ("__reduce__", "__reduce_ex__")
    },
    **{
        f"{kind}.{name}": _NAME
        for kind in ("UntypedStorage", "TypedStorage")
        for name in ("_share_fd_cpu_", "_share_filename_cpu_", "_get_shared_fd")
    },
    "UntypedStorage._weak_ref": _IDENTITY,
    "TypedStorage._weak_ref": _IDENTITY,
    "torch.seed": "a new seed at each call",
}
"""Of their results only the type is compared."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Differences that are known.

    Attributes:
        call: a regular expression found in "ROAD (STATE) called as (PATTERN)".
        verdict: of the call.
        detail: a part of what differed.
        reason: why this is right, or no promise.
    """

    call: str
    verdict: str
    detail: str
    reason: str

    def covers(self, call: str, verdict: str, detail: str) -> bool:
        """Whether this is such a difference."""
        return verdict == self.verdict and self.detail in detail and re.search(self.call, call) is not None


_ELEMENTS = "it reads elements of others without an operation, and raises if they are away (docs/reliability.md)"
_HELD = "a function of PyTorch that the program held before the session is not patched (docs/reliability.md)"
_EMPTY = "its result is whatever the memory holds"
_WORKSPACE = "a part of its result is whatever the memory holds"
_ROUNDING = "on stock PyTorch, too, its last bits depend on what freed memory held (seven results of 400 calls)"
_WITH_VECTORS = "singular values and eigenvalues are computed together with the vectors, by another routine (N22)"
EXPECTED = (
    Expected(r"elements \((?!int)|\(\[x\[0, 1\], x\[0, 2\]\]\)", "differs", "data is not allocated yet", _ELEMENTS),
    Expected(r"^protocol\..* held \(", "differs", "", _HELD),
    Expected(r"^protocol\..* held \(", "unrepeatable", "", _HELD),
    Expected(r"^protocol\..* held \(", "crashed", "ended with -", _HELD),
    Expected(r"^torch\.\w*Tensor \(.*called as \(x\[0, 1\], (x\[0, 1\]|4)\)", "unrepeatable", "result", _EMPTY),
    Expected(r"^torch\.\w*Tensor \(.*called as \(x\[0, 1\], (x\[0, 1\]|4)\)", "differs", "result", _EMPTY),
    Expected(r"^Tensor\.new \(", "unrepeatable", "result", _EMPTY),
    Expected(r"^(torch|torch\.nn\.functional)\.embedding_bag \(", "unrepeatable", "result", _WORKSPACE),
    Expected(r"^torch\.linalg\.lstsq ", "unrepeatable", "result", _ROUNDING),
    Expected(r"^torch\.linalg\.lstsq ", "differs", "result", _ROUNDING),
    Expected(r"^torch\.linalg\.(cond|svdvals|norm|matrix_norm|matrix_rank|pinv|eigvalsh) ", "mode", "", _WITH_VECTORS),
    Expected(r"^(torch|Tensor)\.(norm|nuclear_norm|pinverse|svd) ", "mode", "", _WITH_VECTORS),
    Expected(
        r"^protocol\.ctc_loss by lengths \(parameter",
        "mode",
        "is not differentiable with respect to argument",
        "under any mode autograd refuses lengths that require a gradient before the operator refuses their type",
    ),
    Expected(
        r"^protocol\.torch\.jit\.script ",
        "mode",
        "NotImplementedError: The following operation failed in the TorchScript interpreter",
        "from PyTorch 2.15 on TorchScript keeps the type of an operator's error, and under any mode it does not",
    ),
    Expected(
        r"^protocol\.quantize_per_channel \(dispatching",
        "differs",
        "data is not allocated yet",
        "a quantizer made inside a dispatch that no mode sees keeps tensors that leave: it raises",
    ),
    Expected(
        r"^UntypedStorage\.new \(foreign\)",
        "crashed",
        "on stock",
        "stock PyTorch crashes: memory that is not its own has no allocator to ask for more",
    ),
    Expected(r"^UntypedStorage\.__weakref__ ", "differs", "became Entry", "LMS refers to storages weakly (N2)"),
)
