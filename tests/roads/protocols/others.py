"""Scripts, states of generators, quantization, and functions of PyTorch that call others."""

import copy
import io
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn.utils import rnn
from torch.utils.data import default_collate, default_convert

from tests.roads.protocols.common import Held, at_address, saved


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


def _script_saved(x: torch.Tensor, save: str) -> Any:
    script = torch.jit.script(Held(x)) if save == "script" else torch.jit.trace(Held(x), torch.zeros(4, 4))
    file = io.BytesIO()
    torch.jit.save(script, file)
    return torch.jit.load(io.BytesIO(file.getvalue()))(torch.ones(4, 4))


def _frozen(x: torch.Tensor) -> Any:
    frozen = torch.jit.freeze(torch.jit.script(Held(x).eval()))
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


def _packed(x: torch.Tensor) -> Any:
    packed = rnn.pack_padded_sequence(x[None].float(), torch.tensor([3]), batch_first=True)
    return packed, rnn.pad_packed_sequence(packed, batch_first=True)


def _redispatched(x: torch.Tensor, of: Callable[..., Any]) -> Any:
    return torch.overrides.redispatch_function(of, (torch.Tensor,), (x,), {})


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
    "set_rng_state of a file": partial(_set_rng_state, change=saved),
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
    "quantize, saved": lambda x: saved(torch.quantize_per_tensor(x.detach(), 0.1, 0, torch.quint8)).dequantize(),
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
    "redispatch_function tolist": lambda x: _redispatched(x, torch.Tensor.tolist),
    "redispatch_function repr": lambda x: _redispatched(x, torch.Tensor.__repr__),
    "redispatch_function data_ptr": lambda x: at_address(x, _redispatched(x, torch.Tensor.data_ptr)),
    "redispatch_function numpy": lambda x: _redispatched(x.detach(), torch.Tensor.numpy),
    "torch_function disabled tolist": lambda x: _undisturbed(x.tolist),
    "_lazy_clone": lambda x: torch._lazy_clone(x.detach()),
    "set data": lambda x: setattr(x, "data", torch.ones(4, 4, dtype=x.dtype)),
    "storage resize": lambda x: x.untyped_storage().resize_(x.untyped_storage().nbytes() + 4) and None,
    "storage freed and filled": lambda x: _freed_and_filled(x),
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
    "functional_call": lambda x: torch.func.functional_call(Held(x), {"held": x.detach()}, (torch.ones(4, 4),)),
    "save_for_backward": lambda x: _custom_function(x),
    "saved_tensors_hooks numpy": lambda x: _packed_by_numpy(x.detach()),
}
OTHERS = {**_SCRIPTS, **_STATES, **_OTHERS}
