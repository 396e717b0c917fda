"""Protocols of other libraries, and roads that take more than one call. Each function takes the tensor."""

import copy
import ctypes
import io
import multiprocessing.reduction
import pickle
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.multiprocessing import reductions
from torch.nn.utils import rnn
from torch.utils.data import default_collate, default_convert

try:
    import safetensors.torch as safetensors
except ImportError:
    safetensors = None

_held_numpy = torch.Tensor.numpy
_held_tolist = torch.Tensor.tolist
_held_data_ptr = torch.Tensor.data_ptr
_held_array = torch.Tensor.__array__
_held_to_dlpack = torch.utils.dlpack.to_dlpack
_held_storage_fill = torch.UntypedStorage.fill_
"""As ``from torch.utils.dlpack import to_dlpack`` holds it before a session begins."""


def _at_address(x: torch.Tensor, address: int) -> memoryview:
    values = (ctypes.c_byte * (x.numel() * x.element_size())).from_address(address)
    return memoryview(values)


def _saved(value: Any, **options: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file, **options)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


def _saved_under_two_dtypes(x: torch.Tensor, **options: Any) -> Any:
    return _saved({"one": x, "other": x.detach().view(torch.uint8)}, **options)


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


def _reduced(x: torch.Tensor) -> Any:
    rebuild, args = reductions.reduce_tensor(x.detach())
    return rebuild(*args)


def _sent(x: torch.Tensor) -> bool:
    return len(multiprocessing.reduction.ForkingPickler.dumps(x.detach())) > 0


def _swapped(x: torch.Tensor) -> Any:
    other = torch.full_like(x, 1)
    torch.utils.swap_tensors(x, other)
    return other


def _safe(x: torch.Tensor) -> Any:
    return safetensors.load(safetensors.save({"x": x.detach().contiguous()}))


def _safe_file(x: torch.Tensor) -> Any:
    with tempfile.NamedTemporaryFile() as file:
        safetensors.save_file({"x": x.detach().contiguous()}, file.name)
        return safetensors.load_file(file.name)


def _printed(x: torch.Tensor, **options: Any) -> str:
    before = copy.copy(torch._tensor_str.PRINT_OPTS)
    torch.set_printoptions(**options)
    try:
        return f"{x}"
    finally:
        torch._tensor_str.PRINT_OPTS = before


def _traced(x: torch.Tensor) -> Any:
    return torch.jit.trace(lambda y: y + y[0], (x.detach(),))(x)


def _traced_constant(x: torch.Tensor) -> Any:
    held = x.detach()
    traced = torch.jit.trace(lambda y: y + held, (torch.zeros(4, 4),))
    return traced(torch.ones(4, 4)), str(traced.graph)


@torch.jit.script
def _first(x: torch.Tensor):
    return x[0, 0].item(), x.tolist() if False else x.sum()


@torch.jit.script
def _branch(x: torch.Tensor):
    return x + 1 if bool(x[0, 1] > 0) else x - 1


class _Held(torch.nn.Module):
    def __init__(self, x: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("held", x.detach())

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return y + self.held


def _script_saved(x: torch.Tensor, save: str) -> Any:
    script = torch.jit.script(_Held(x)) if save == "script" else torch.jit.trace(_Held(x), torch.zeros(4, 4))
    file = io.BytesIO()
    torch.jit.save(script, file)
    return torch.jit.load(io.BytesIO(file.getvalue()))(torch.ones(4, 4))


def _frozen(x: torch.Tensor) -> Any:
    frozen = torch.jit.freeze(torch.jit.script(_Held(x).eval()))
    return frozen(torch.ones(4, 4))


def _rng_state(x: torch.Tensor) -> Any:
    return torch.Generator().manual_seed(3).get_state() * 1


def _set_rng_state(x: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor] = lambda state: state) -> Any:
    torch.set_rng_state(change(_rng_state(x)))
    return torch.rand(3)


def _generator_set_state(x: torch.Tensor) -> Any:
    generator = torch.Generator()
    generator.set_state(copy.deepcopy(_rng_state(x)))
    return torch.rand(3, generator=generator)


def _sobol(x: torch.Tensor, **options: Any) -> Any:
    engine = torch.quasirandom.SobolEngine(3, seed=1, **options)
    return engine.draw(4), engine.fast_forward(2).draw(3), engine.reset().draw_base2(2)


def _numbers(x: torch.Tensor, of: Callable[[torch.Tensor], Any], **options: Any) -> Any:
    return of([x[0, 1], x[2, 3]], **options)


def _packed(x: torch.Tensor) -> Any:
    packed = rnn.pack_padded_sequence(x[None].float(), torch.tensor([3]), batch_first=True)
    return packed, rnn.pad_packed_sequence(packed, batch_first=True)


def _redispatched(x: torch.Tensor, of: Callable[..., Any]) -> Any:
    return torch.overrides.redispatch_function(of, (torch.Tensor,), (x,), {})


def _shared(x: torch.Tensor) -> Any:
    return x.detach().share_memory_()


def _module_shared(x: torch.Tensor) -> Any:
    return _Held(x).share_memory().held


def _lazy_array(x: torch.Tensor) -> Any:
    """An array made while the tensor was on the device must go on showing it."""
    array = x.detach().numpy()
    torch.zeros(4, 4).add_(1)
    return array


_PICKLED = {
    f"pickle {protocol}": lambda x, protocol=protocol: pickle.loads(pickle.dumps(x, protocol))
    for protocol in range(2, 6)
}
_NUMPY = {
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
    "data_ptr()": lambda x: _at_address(x, x.data_ptr()),
    "detach().data_ptr()": lambda x: _at_address(x, x.detach().data_ptr()),
    "data_ptr() held": lambda x: _at_address(x, _held_data_ptr(x)),
    "const_data_ptr": lambda x: (
        _at_address(x, torch._C._const_data_ptr(x)) if hasattr(torch._C, "_const_data_ptr") else 0
    ),
    "untyped_storage().data_ptr()": lambda x: _at_address(x, x.untyped_storage().data_ptr()),
    "storage().data_ptr()": lambda x: _at_address(x, x.storage().data_ptr()),
    "numpy().ctypes": lambda x: _at_address(x, x.detach().numpy().ctypes.data),
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
_COPIES = {
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "copy.deepcopy detach": lambda x: copy.deepcopy(x.detach()),
    "copy.deepcopy twice": lambda x: copy.deepcopy([x, x[0].detach()]),
    "copy.deepcopy of a module": lambda x: copy.deepcopy(_Held(x)).held,
    "copy.deepcopy of a storage": lambda x: copy.deepcopy(x.untyped_storage()),
    "copy.copy of a storage": lambda x: copy.copy(x.untyped_storage()),
    "pickle of a storage": lambda x: pickle.loads(pickle.dumps(x.untyped_storage())),
    "pickle of a typed storage": lambda x: pickle.loads(pickle.dumps(x.storage())),
    "pickle of a view and its base": lambda x: pickle.loads(pickle.dumps([x, x.detach()[0]])),
    "pickle of a module": lambda x: pickle.loads(pickle.dumps(_Held(x).state_dict())),
    "state_dict, loaded": lambda x: _Held(torch.zeros_like(x)).load_state_dict(_Held(x).state_dict()),
    "torch.save": _saved,
    "torch.save legacy": partial(_saved, _use_new_zipfile_serialization=False),
    "torch.save of a view": lambda x: _saved([x.detach()[1:, 1], x]),
    "torch.save of a storage": lambda x: _saved(x.untyped_storage()),
    "torch.save of a typed storage": lambda x: _saved(x.storage()),
    "torch.save under two dtypes": _saved_under_two_dtypes,
    "torch.save under two dtypes, legacy": partial(_saved_under_two_dtypes, _use_new_zipfile_serialization=False),
    "torch.load mapped": lambda x: _loaded_mapped(x),
    "share_memory_": _shared,
    "Module.share_memory": _module_shared,
    "reduce_tensor": _reduced,
    "ForkingPickler": _sent,
    "swap_tensors": _swapped,
    **({"safetensors": _safe, "safetensors file": _safe_file} if safetensors is not None else {}),
}


def _loaded_mapped(x: torch.Tensor) -> Any:
    with tempfile.NamedTemporaryFile() as file:
        torch.save(x, file.name)
        return torch.load(file.name, mmap=True, weights_only=False) + 0


_MADE_OF = {
    **{f"torch.{f.__name__}": f for f in (torch.tensor, torch.as_tensor, torch.asarray)},
    **{
        f"torch.{f.__name__} of a storage": lambda x, f=f: f(x.untyped_storage())
        for f in (torch.tensor, torch.as_tensor, torch.asarray)
    },
    **{
        f"torch.{f.__name__} of a typed storage": lambda x, f=f: f(x.storage())
        for f in (torch.tensor, torch.as_tensor, torch.asarray)
    },
    **{
        f"torch.{f.__name__} of elements": partial(_numbers, of=f)
        for f in (torch.tensor, torch.as_tensor, torch.asarray)
    },
    **{
        f"torch.{f.__name__} of numpy()": lambda x, f=f: f(x.detach().numpy())
        for f in (torch.tensor, torch.as_tensor, torch.asarray)
    },
    "torch.asarray copy": lambda x: torch.asarray(x, copy=True),
    "torch.asarray float64": lambda x: torch.asarray(x, dtype=torch.float64),
    "torch.tensor float64": lambda x: torch.tensor(x, dtype=torch.float64),
    "torch.tensor of a list of rows": lambda x: torch.tensor(x.tolist()),
    "FloatTensor of elements": partial(_numbers, of=torch.FloatTensor),
    "new_tensor of elements": lambda x: x.new_tensor([x[0, 1], x[2, 3]]),
    "new_tensor of a storage": lambda x: x.new_tensor(x.untyped_storage()),
    "torch.Tensor(x)": lambda x: torch.Tensor(x),
    "torch.Size of elements": lambda x: torch.Size([x[0, 1], x[0, 2]]),
    "torch.scalar_tensor": lambda x: torch.scalar_tensor(x[0, 1]),
    "torch.full": lambda x: torch.full((2, 2), x[0, 1]),
    "torch.stack of elements": lambda x: torch.stack([x[0, 1], x[2, 3]]),
    "x[i, j] = element": lambda x: x.detach().__setitem__((0, 0), x.detach()[1, 2]),
    "list[element]": lambda x: ["a", "b", "c", "d"][x[0, 1]],
    "range(element)": lambda x: list(range(x[0, 2])),
    "slice by elements": lambda x: torch.arange(6)[x[0, 0] : x[0, 3]],
    "index by elements": lambda x: torch.arange(6)[x[0, 1], ...],
    "index by a tensor": lambda x: torch.arange(6)[x],
    "index by rows": lambda x: torch.arange(16).view(4, 4)[list(x[:2])],
    "view by elements": lambda x: torch.arange(6).view(x[0, 2], -1),
    "dict key": lambda x: {x: 1}[x],
    "element in a list": lambda x: x[0, 1] in [0.5, x[0, 1]],
    "number in": lambda x: 2 in x,
    "sorted": lambda x: sorted(x.detach().flatten()),
    "sum": lambda x: sum(x),
    "min": lambda x: min(x.detach().flatten()),
    "unpacked": lambda x: (lambda *rows: rows)(*x),
    "zip": lambda x: list(zip(x, x, strict=True)),
    "reversed": lambda x: reversed(x),
    "random.choice": lambda x: __import__("random").choice(x),
    "math.sqrt": lambda x: __import__("math").sqrt(x[0, 1]),
    "round": lambda x: round(x[0, 1].item(), 3),
    "complex": lambda x: complex(x[0, 1]),
    "divmod": lambda x: x[0, 1].item() and divmod(1.0, x[0, 1].item()),
    "isinstance": lambda x: isinstance(x, torch.FloatTensor),
    "if": lambda x: 1 if x[0, 1] else 2,
}
_TEXTS = {
    "repr": repr,
    "str": str,
    "format": lambda x: f"{x}",
    "format of an element": lambda x: f"{x.detach()[0, 1]:.3f}",
    "% of an element": lambda x: "%.3f" % x[0, 1],  # noqa: UP031
    "repr of a parameter list": lambda x: repr([x]),
    "print full": lambda x: _printed(x, profile="full"),
    "print in sci": lambda x: _printed(x, sci_mode=True, precision=8),
    "print summarized": lambda x: _printed(x, threshold=2, edgeitems=1),
    "repr of a storage": lambda x: repr(x.untyped_storage()),
    "str of a typed storage": lambda x: str(x.storage()),
    "repr of a module": lambda x: repr(_Held(x)),
    "tensor_repr of elements": lambda x: str(list(x.detach()[0])),
}
_SCRIPTS = {
    "torch.jit.trace": _traced,
    "torch.jit.trace of a constant": _traced_constant,
    "torch.jit.script item": lambda x: _first(x),
    "torch.jit.script branch": lambda x: _branch(x),
    "torch.jit.save script": lambda x: _script_saved(x, "script"),
    "torch.jit.save trace": lambda x: _script_saved(x, "trace"),
    "torch.jit.freeze": _frozen,
}
_STATES = {
    "set_rng_state": _set_rng_state,
    "set_rng_state of a copy": partial(_set_rng_state, change=copy.deepcopy),
    "set_rng_state of a pickle": partial(_set_rng_state, change=lambda state: pickle.loads(pickle.dumps(state))),
    "set_rng_state of a file": partial(_set_rng_state, change=_saved),
    "Generator.set_state": _generator_set_state,
    "fork_rng": lambda x: torch.random.fork_rng().__enter__(),
    "SobolEngine": _sobol,
    "SobolEngine of many dimensions": lambda x: torch.quasirandom.SobolEngine(5000).draw(2),
    "SobolEngine scrambled": partial(_sobol, scramble=True),
}
_OTHERS = {
    "default_collate": lambda x: default_collate([x, x]),
    "default_collate of numpy()": lambda x: default_collate([x.detach().numpy(), x.detach().numpy()]),
    "default_convert": lambda x: default_convert({"x": x.detach().numpy()}),
    "pad_sequence": lambda x: rnn.pad_sequence([x, x[:2]]),
    "pack_sequence": lambda x: rnn.pack_sequence([x, x[:2]]),
    "pack_padded_sequence": _packed,
    "pack_padded_sequence by lengths": lambda x: rnn.pack_padded_sequence(
        torch.ones(4, 4, 2), x[1] + 1, enforce_sorted=False
    ),
    "nested_tensor": lambda x: torch.nested.nested_tensor([x.detach(), x.detach()[:2]]).unbind(),
    "nested_tensor jagged": lambda x: torch.nested.nested_tensor(
        [x.detach(), x.detach()[:2]], layout=torch.jagged
    ).values(),
    "nested as_nested": lambda x: torch.nested.as_nested_tensor([x, x[:2]]).unbind(),
    "nested narrow": lambda x: torch.nested.narrow(torch.ones(4, 5, 2), 1, 0, (x[1] + 1), layout=torch.jagged).unbind(),
    "sparse_coo_tensor": lambda x: torch.sparse_coo_tensor(torch.tensor([[0, 1, 2, 3]]), x, (5, 4)),
    "sparse_coo_tensor by indices": lambda x: torch.sparse_coo_tensor(
        x[:2], torch.ones(4), (5, 5), check_invariants=True
    ),
    "sparse_csr_tensor": lambda x: torch.sparse_csr_tensor(torch.tensor([0, 2, 4]), torch.tensor([0, 1, 0, 1]), x[0]),
    "sparse_csr checked": lambda x: torch.sparse_csr_tensor(
        [0, 2, 4], [0, 1, 0, 1], x[0], (2, 2), check_invariants=True
    ),
    "to_sparse, repr": lambda x: repr(x.detach().to_sparse()),
    "to_mkldnn, back": lambda x: x.detach().to_mkldnn().to_dense(),
    "quantize_per_channel": lambda x: torch.quantize_per_channel(x, x[0], torch.zeros(4), 0, torch.quint8).dequantize(),
    "quantize, saved": lambda x: _saved(torch.quantize_per_tensor(x.detach(), 0.1, 0, torch.quint8)).dequantize(),
    "quantized repr": lambda x: repr(torch.quantize_per_tensor(x.detach(), 0.1, 0, torch.quint8)),
    "fbgemm_pack_gemm_matrix_fp16": lambda x: torch.fbgemm_linear_fp16_weight_fp32_activation(
        torch.ones(2, 4), torch.fbgemm_pack_gemm_matrix_fp16(x.detach()), torch.zeros(4)
    ),
    "fbgemm_linear_quantize_weight": lambda x: torch.fbgemm_linear_quantize_weight(x.detach())[0],
    "fbgemm_linear_int8_weight": lambda x: _int8_linear(x.detach()),
    "choose_qparams_optimized": lambda x: torch.choose_qparams_optimized(x.detach().flatten(), 16, 200, 0.16, 8),
    "linear_prepack": lambda x: torch.ops.quantized.linear(
        torch.quantize_per_tensor(torch.ones(2, 4), 0.1, 0, torch.quint8),
        torch.ops.quantized.linear_prepack(torch.quantize_per_tensor(x.detach(), 0.1, 0, torch.qint8), x.detach()[0]),
        1.0,
        0,
    ).dequantize(),
    "dynamic quantized Linear": lambda x: _quantized_linear(x.detach()),
    "redispatch_function tolist": partial(_redispatched, of=torch.Tensor.tolist),
    "redispatch_function repr": partial(_redispatched, of=torch.Tensor.__repr__),
    "redispatch_function data_ptr": lambda x: _at_address(x, _redispatched(x, torch.Tensor.data_ptr)),
    "redispatch_function numpy": lambda x: _redispatched(x.detach(), torch.Tensor.numpy),
    "torch_function disabled tolist": lambda x: _undisturbed(x.tolist),
    "_lazy_clone": lambda x: torch._lazy_clone(x.detach()),
    "set data": lambda x: setattr(x, "data", torch.ones(4, 4, dtype=x.dtype)),
    "storage resize": lambda x: x.untyped_storage().resize_(x.untyped_storage().nbytes() + 4) and None,
    "storage freed and filled": lambda x: _freed_and_filled(x),
    "untyped_storage().nbytes() freed": lambda x: x.untyped_storage().resize_(0) and None,
    "histogramdd": lambda x: torch.histogramdd(x, [2, 2, 2, 2]),
    "histogramdd into bins": lambda x: torch.histogramdd(torch.ones(3, 4), [row.sort()[0] for row in x]),
    "ctc_loss by lengths": lambda x: torch.nn.functional.ctc_loss(
        torch.ones(4, 4, 5).log_softmax(2), torch.ones(4, 4, dtype=torch.int64), torch.full((4,), 4), x[1]
    ),
    "repeat_interleave": lambda x: torch.arange(4).repeat_interleave(x[1]),
    "tensor_split by a tensor": lambda x: torch.arange(6).tensor_split(x[0].cpu()),
    "split by elements": lambda x: torch.arange(6).split([x[0, 1], x[0, 2], x[0, 3]]),
    "interpolate by a tensor": lambda x: torch.nn.functional.interpolate(torch.ones(1, 1, 2), scale_factor=x[0, 1]),
    "embedding_bag": lambda x: torch.nn.functional.embedding_bag(x, torch.ones(4, 5), torch.tensor([0, 3])),
    "multi_tensor unflatten": lambda x: torch._utils._unflatten_dense_tensors(
        torch._utils._flatten_dense_tensors([x, x]), [x, x]
    ),
    "vmap": lambda x: torch.vmap(lambda row: row * 2)(x),
    "vmap item": lambda x: torch.vmap(lambda row: row.sum().item())(x),
    "grad": lambda x: torch.func.grad(lambda y: (y * y).sum())(x.detach()),
    "functional_call": lambda x: torch.func.functional_call(_Held(x), {"held": x.detach()}, (torch.ones(4, 4),)),
    "save_for_backward": lambda x: _custom_function(x),
    "saved_tensors_hooks numpy": lambda x: _packed_by_numpy(x.detach()),
}


def _int8_linear(x: torch.Tensor) -> Any:
    weight, offsets, scale, zero = torch.fbgemm_linear_quantize_weight(x)
    packed = torch.fbgemm_pack_quantized_matrix(weight)
    return torch.fbgemm_linear_int8_weight(torch.ones(2, 4), weight, packed, offsets, scale, zero, torch.zeros(4))


def _quantized_linear(x: torch.Tensor) -> Any:
    linear = torch.nn.Linear(4, 4)
    linear.weight.data = x
    return torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(linear), {torch.nn.Linear})(torch.ones(2, 4))


def _undisturbed(call: Callable[[], Any]) -> Any:
    with torch._C.DisableTorchFunction():
        return call()


def _freed_and_filled(x: torch.Tensor) -> None:
    storage = x.untyped_storage()
    nbytes = storage.nbytes()
    storage.resize_(0)
    storage.resize_(nbytes)
    storage.fill_(2)


def _packed_by_numpy(x: torch.Tensor) -> Any:
    leaf = x.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved.detach().numpy(), torch.from_numpy):
        result = (leaf * x).exp().sum()
    result.backward()
    return leaf.grad


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return torch.from_numpy(x.detach().numpy() ** 2)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return torch.from_numpy(gradient.numpy() * 2 * x.detach().numpy())


def _custom_function(x: torch.Tensor) -> Any:
    leaf = x.detach().clone().requires_grad_()
    _Square.apply(leaf).sum().backward()
    return leaf.grad


PROTOCOLS: dict[str, Callable[[torch.Tensor], Any]] = {
    **_NUMPY,
    **_BUFFERS,
    **_DLPACK,
    **_PICKLED,
    **_COPIES,
    **_MADE_OF,
    **_TEXTS,
    **_SCRIPTS,
    **_STATES,
    **_OTHERS,
}
