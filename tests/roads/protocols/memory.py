"""NumPy, buffers, addresses and DLPack."""

import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.roads.protocols.common import at_address

_held_numpy = torch.Tensor.numpy
_held_tolist = torch.Tensor.tolist
_held_data_ptr = torch.Tensor.data_ptr
_held_array = torch.Tensor.__array__
_held_to_dlpack = torch.utils.dlpack.to_dlpack
_held_storage_fill = torch.UntypedStorage.fill_
"""As ``from torch.utils.dlpack import to_dlpack`` holds it before a session begins."""


def _written_record(x: torch.Tensor) -> bytes:
    file = io.BytesIO()
    writer = torch._C.PyTorchFileWriter(file)
    storage = x.untyped_storage()
    writer.write_record("data", storage, storage.nbytes())
    writer.write_end_of_file()
    return torch._C.PyTorchFileReader(io.BytesIO(file.getvalue())).get_record("data")


def _storage_file(x: torch.Tensor) -> bytes:
    with tempfile.NamedTemporaryFile() as file:
        x.untyped_storage()._write_file(file, True, False, 1)
        return Path(file.name).read_bytes()


def _read_storage_file(x: torch.Tensor) -> None:
    storage = x.untyped_storage()
    with tempfile.NamedTemporaryFile() as file:
        file.write(storage.nbytes().to_bytes(8, "little") + bytes(n % 100 for n in range(storage.nbytes())))
        file.seek(0)
        storage._set_from_file(file, None, False, 1)


def _numpy_saved(x: torch.Tensor) -> Any:
    file = io.BytesIO()
    np.save(file, x)
    file.seek(0)
    return np.load(file)


def _lazy_array(x: torch.Tensor) -> Any:
    """An array made while the tensor was on the device must go on showing it."""
    array = x.detach().numpy()
    torch.zeros(4, 4).add_(1)
    return array


def _array_of_trained(x: torch.Tensor) -> Any:
    """An array that shares a parameter's memory must show what the optimizer does."""
    parameter = torch.nn.Parameter(x.detach())
    array = parameter.detach().numpy()
    parameter.grad = torch.ones(4, 4)
    torch.optim.SGD([parameter], lr=0.5).step()
    return array, parameter


def _at_array(x: torch.Tensor) -> Any:
    """The address counts as long as the array lives."""
    array = x.detach().numpy()
    return array, at_address(x, array.ctypes.data)


_NUMPY = {
    "numpy() of a parameter, then a step": _array_of_trained,
    "np.asarray": lambda x: np.asarray(x.detach()),
    "np.array": lambda x: np.array(x.detach()),
    "np.array of a list": lambda x: np.array([x[0, 1], x[2, 3]]),
    "np.array of rows": lambda x: np.array(list(x.detach())),
    "np.asarray of a parameter": np.asarray,
    "np.asarray float64": lambda x: np.asarray(x.detach(), dtype=np.float64),
    "np.asarray copy": lambda x: np.asarray(x.detach(), copy=True),
    "np.asarray no copy": lambda x: np.asarray(x.detach(), copy=False),
    "np.from_dlpack": lambda x: np.from_dlpack(x.detach()),
    "np.from_dlpack copy": lambda x: np.from_dlpack(x.detach(), copy=True),
    "np.frombuffer": lambda x: np.frombuffer(x.detach().numpy(), np.uint8),
    "np.sin": lambda x: np.sin(x.detach()),
    "np.add": lambda x: np.add(x.detach(), np.ones((4, 4), np.float32)),
    "np.add into": lambda x: np.add(np.ones((4, 4)), 1, out=x.detach().numpy(), casting="unsafe"),
    "np.stack": lambda x: np.stack([x.detach(), x.detach()]),
    "np.copyto": lambda x: np.copyto(np.zeros((4, 4)), x.detach()),
    "np.mean": lambda x: np.mean(x.detach()),
    "np.save": _numpy_saved,
    "np.array + tensor": lambda x: np.ones((4, 4), np.float32) + x.detach(),
    "np.float64 * tensor": lambda x: np.float64(2) * x.detach(),
    "ndarray[tensor]": lambda x: np.arange(4)[x.detach()],
    "ndarray[:] = tensor": lambda x: np.zeros((4, 4)).__setitem__(slice(None), x.detach()),
    "numpy()": lambda x: x.numpy(),
    "numpy(force=True)": lambda x: x.numpy(force=True),
    "detach().numpy()": lambda x: x.detach().numpy(),
    "detach().numpy() of a row": lambda x: x.detach()[1].numpy(),
    "data.numpy()": lambda x: x.data.numpy(),
    "numpy() kept": _lazy_array,
    "torch.from_numpy(numpy())": lambda x: torch.from_numpy(x.detach().numpy()),
    "__array__": lambda x: x.detach().__array__(),
    "__array__ float64": lambda x: x.detach().__array__(np.float64),
    "Tensor.numpy held": lambda x: _held_numpy(x.detach()),
    "Tensor.__array__ held": lambda x: _held_array(x.detach()),
    "Tensor.tolist held": lambda x: _held_tolist(x.detach()),
}
_BUFFERS = {
    "memoryview(numpy())": lambda x: memoryview(x.detach().numpy()),
    "bytes(numpy())": lambda x: bytes(x.detach().numpy()),
    "numpy().tobytes()": lambda x: x.detach().numpy().tobytes(),
    "data_ptr()": lambda x: at_address(x, x.data_ptr()),
    "detach().data_ptr()": lambda x: at_address(x, x.detach().data_ptr()),
    "data_ptr() held": lambda x: at_address(x, _held_data_ptr(x)),
    "const_data_ptr": lambda x: (
        at_address(x, torch._C._const_data_ptr(x)) if hasattr(torch._C, "_const_data_ptr") else 0
    ),
    "untyped_storage().data_ptr()": lambda x: at_address(x, x.untyped_storage().data_ptr()),
    "storage().data_ptr()": lambda x: at_address(x, x.storage().data_ptr()),
    "numpy().ctypes": _at_array,
    "bytes(untyped_storage())": lambda x: bytes(x.untyped_storage()),
    "list(untyped_storage())": lambda x: list(x.untyped_storage()),
    "untyped_storage().tolist()": lambda x: x.untyped_storage().tolist(),
    "storage().tolist()": lambda x: x.storage().tolist(),
    "untyped_storage()[:]": lambda x: x.untyped_storage()[:],
    "untyped_storage().fill_ held": lambda x: _held_storage_fill(x.untyped_storage(), 1) and None,
    "torch.frombuffer": lambda x: torch.frombuffer(x.detach().numpy(), dtype=torch.uint8),
    "torch.frombuffer of bytes": lambda x: torch.frombuffer(bytearray(x.detach().numpy()), dtype=torch.uint8),
    "ByteTensor(storage)": lambda x: torch.ByteTensor(x.untyped_storage()),
    "set_(storage)": lambda x: torch.empty(0, dtype=x.dtype).set_(x.untyped_storage()),
    "_write_file": _storage_file,
    "_set_from_file": _read_storage_file,
    "write_record": _written_record,
}
_DLPACK = {
    "torch.from_dlpack": torch.from_dlpack,
    "torch.from_dlpack detach": lambda x: torch.from_dlpack(x.detach()),
    "torch.from_dlpack copy": lambda x: torch.from_dlpack(x.detach(), copy=True),
    "to_dlpack": lambda x: torch.utils.dlpack.to_dlpack(x.detach()),
    "torch.to_dlpack": lambda x: torch.to_dlpack(x.detach()),
    "to_dlpack held": lambda x: _held_to_dlpack(x.detach()),
    "__dlpack__": lambda x: x.detach().__dlpack__(),
    "__dlpack__ 1.0": lambda x: x.detach().__dlpack__(max_version=(1, 0)),
    "__dlpack__ copy": lambda x: x.detach().__dlpack__(copy=True),
    "__dlpack_c_exchange_api__": lambda x: type(x.__dlpack_c_exchange_api__).__name__,
}
MEMORY = {**_NUMPY, **_BUFFERS, **_DLPACK}
