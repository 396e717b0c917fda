"""Autograd, `torch.func`, subclasses and tools give the same bits when every page leaves after each operation.

As in `test_features.py`: a feature is a function without arguments that returns what must be equal.
"""

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode

import torch_lms
from tests.cpu.test_features import (
    Feature,
    cases,
    check,
    entering,
    everything_leaves,
    leaf,
    reference,
    saved,
    with_gradients,
)

FEATURES: dict[str, Feature] = {}
feature = entering(FEATURES)

CHANGED_BY_ANY_MODE: set[str] = {
    "forward_mode_of_norms",  # its formula works in place without a mode
    "singular_values",  # under a mode the vectors are computed, too, by another routine
}
"""They equal an empty dispatch mode, not a plain run (N22)."""

BROKEN: set[str] = set()
"""They show a bug that is not repaired yet."""

BROKEN_CRASH: list[str] = []
"""The same, but the process dies of it: not run at all."""


# -- autograd ----------------------------------------------------------------------------------------------------------


@feature
def hooks_of_tensors_and_nodes() -> Any:
    x, w, seen = leaf(32, 32), leaf(32, 32), []

    def keep(*gradients: Any) -> None:
        seen.extend(tree_map(torch.clone, [g for g in tree_leaves(gradients) if g is not None]))

    y = (x @ w).tanh()
    y.register_hook(lambda grad: grad * 2)
    x.register_hook(keep)
    x.register_post_accumulate_grad_hook(lambda tensor: keep(tensor.grad.mul_(3)))
    y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] + 1,))
    y.grad_fn.register_prehook(lambda outputs: (outputs[0] * 0.5,))
    torch.autograd.graph.register_multi_grad_hook((x, w), keep)
    y.retain_grad()
    everything_leaves()
    return with_gradients(y, x, w, y), seen


@feature
def saved_tensor_hooks() -> Any:
    results = []
    for hooks in (
        torch.autograd.graph.saved_tensors_hooks(saved, torch.load),
        torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().numpy().copy(), torch.from_numpy),
        torch.autograd.graph.save_on_cpu(),
        torch.autograd.graph.allow_mutation_on_saved_tensors(),
    ):
        x, w = leaf(32, 32), leaf(32, 32)
        with hooks:
            y = (x @ w).sigmoid() * x.exp()
            if isinstance(hooks, torch.autograd.graph.saved_tensors_hooks):
                everything_leaves()
            else:
                w.data.add_(1)
            results.append(with_gradients(y, x, w))
    return results


@feature
def mutation_of_saved_tensors() -> Any:
    x, w = leaf(32, 32), leaf(32, 32)
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        y = x * 2
        z = (y.sin() @ w).exp()
        y.mul_(3)
        z.add_(1)
        everything_leaves()
        return with_gradients(z * y, x, w), y


@feature
def backward_in_many_ways() -> Any:
    x, w = leaf(32, 32), leaf(32, 32)
    y = (x @ w).tanh()
    y.sum().backward(retain_graph=True, inputs=[x])
    everything_leaves()
    (y * 2).sum().backward()
    (slope,) = torch.autograd.grad((x @ w).tanh().sum(), x, create_graph=True)
    everything_leaves()
    second = torch.autograd.grad(slope.square().sum(), (x, w), retain_graph=True)
    batched = torch.autograd.grad((x @ w), x, torch.randn(4, 32, 32), is_grads_batched=True)
    with torch.autograd.detect_anomaly():
        slope.norm().backward()
    edge = torch.autograd.graph.get_gradient_edge(w)
    third = torch.autograd.grad((x @ w).exp().sum(), edge)
    return y, slope, second, batched, third, x.grad, w.grad


@feature
def an_error_in_backward() -> Any:
    x = leaf(32, 32)

    def refuse(grad: torch.Tensor) -> None:
        raise ValueError("a test says so")

    y = x.exp()
    handle = y.register_hook(refuse)
    with pytest.raises(ValueError, match="a test says so"):
        y.sum().backward()
    handle.remove()
    everything_leaves()
    return with_gradients(x.exp() * 2, x)


class _InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, by: float) -> torch.Tensor:
        ctx.by = by
        ctx.mark_dirty(x)
        return x.mul_(by)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * ctx.by, None


class _Split(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> Any:
        exponential = x.exp()
        return exponential * x, exponential

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs, output[1])
        ctx.save_for_forward(*inputs, output[1])
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> torch.Tensor:
        x, exponential = ctx.saved_tensors
        return grad * exponential * (x + 1)

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor) -> Any:
        x, exponential = ctx.saved_tensors
        return tangent * exponential * (x + 1), None


@feature
def own_functions() -> Any:
    x = leaf(32, 32)
    y = x * 2
    _InPlace.apply(y, 3.0)
    everything_leaves()
    product, exponential = _Split.apply(x)
    result = with_gradients(y + product, x)
    mapped = torch.vmap(torch.func.grad(lambda row: _Split.apply(row)[0].sum()))(x.detach())
    forward = torch.func.jvp(lambda t: _Split.apply(t)[0], (x.detach(),), (x.detach() + 1,))
    return result, exponential, mapped, forward


@feature
def backward_within_backward() -> Any:
    """Deeper than the engine recurses: it goes on in a thread of C++."""

    class Reentrant(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, depth: int) -> torch.Tensor:
            ctx.save_for_backward(x)
            ctx.depth = depth
            return x * 1.01

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            if ctx.depth == 0:
                return grad * 1.01, None
            with torch.enable_grad():
                inner = ctx.saved_tensors[0].detach().requires_grad_()
                Reentrant.apply(inner, ctx.depth - 1).backward(grad)
            return inner.grad * 1.01, None

    x = leaf(32, 32)
    everything_leaves()
    return with_gradients(Reentrant.apply(x, 80), x)


@feature
def functional_autograd() -> Any:
    x, v = torch.randn(24, 24), torch.randn(24, 24)
    everything_leaves()

    def work(t: torch.Tensor) -> torch.Tensor:
        return (t @ t.mT).tanh().sum(1)

    af = torch.autograd.functional
    return (
        af.jacobian(work, x),
        af.jacobian(work, x, vectorize=True, strategy="forward-mode"),
        af.vjp(work, x, v[0]),
        af.jvp(work, x, v),
        af.hvp(lambda t: work(t).sum(), x, v),
        af.hessian(lambda t: work(t).sum(), x, vectorize=True)[0, :3],
    )


@feature
def forward_mode() -> Any:
    x, tangent, w = torch.randn(32, 32), torch.randn(32, 32), leaf(32, 32)
    everything_leaves()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tangent)
        everything_leaves()
        y = (dual @ w).tanh().sigmoid()
        y = torch.cat([y, dual[4:5]])
        primal, slope = forward_ad.unpack_dual(y)
        (primal.sum() + slope.square().sum()).backward()
        return primal.clone(), slope.clone(), w.grad


@feature
def forward_mode_of_norms() -> Any:
    x, tangent = torch.randn(32, 32), torch.randn(32, 32)
    everything_leaves()
    with forward_ad.dual_level():
        y = F.layer_norm(forward_ad.make_dual(x, tangent), (32,))
        return [part.clone() for part in forward_ad.unpack_dual(y)]


@feature
def threads_at_once() -> Any:
    """Each with a graph of its own."""
    graphs = [(leaf(32, 32), leaf(32, 32)) for _ in range(4)]

    def train(x: torch.Tensor, w: torch.Tensor) -> None:
        for _ in range(30):
            (x @ w).tanh().square().sum().backward()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(train, *zip(*graphs, strict=True)))
    return [(x.grad, w.grad) for x, w in graphs]


@feature
def backward_in_another_thread() -> Any:
    x, w = leaf(32, 32), leaf(32, 32)
    results = [(x @ w).exp() for _ in range(3)]
    everything_leaves()
    for result in results:
        thread = threading.Thread(target=result.sum().backward)
        thread.start()
        thread.join()
    return results, x.grad, w.grad


# -- without gradients -------------------------------------------------------------------------------------------------


@feature
def singular_values() -> Any:
    x = torch.randn(32, 32)
    everything_leaves()
    return torch.linalg.svdvals(x), torch.linalg.norm(x, 2), torch.linalg.eigvalsh(x @ x.mT), torch.linalg.cond(x)


@feature
def inference_on_images() -> Any:
    with torch.inference_mode():
        x, volume = torch.randn(2, 4, 9, 9), torch.randn(2, 4, 9, 9, 9)
        everything_leaves()
        sizes = [F.interpolate(x, scale_factor=1.7, mode=mode) for mode in ("nearest", "bilinear", "bicubic", "area")]
        normed = F.instance_norm(x), F.group_norm(x, 2), F.layer_norm(x, (9, 9)), F.pad(x, (1, 1, 1, 1), mode="reflect")
        return [t.clone() for t in (*sizes, F.interpolate(volume, scale_factor=2, mode="trilinear"), *normed)]


@feature
def inference_with_dropout() -> Any:
    model = nn.LSTM(32, 32, 2, dropout=0.4)
    with torch.inference_mode():
        x = torch.randn(5, 4, 32)
        everything_leaves()
        return model(x)[0].clone(), F.dropout(x, 0.3).clone(), F.alpha_dropout(x, 0.3).clone()


@feature
def inference_with_singular_values() -> Any:
    with torch.inference_mode():
        x = torch.randn(32, 32)
        return torch.linalg.svdvals(x).clone(), torch.linalg.eigvalsh(x @ x.mT).clone(), (x @ x).clone()


# -- torch.func --------------------------------------------------------------------------------------------------------


@feature
def transforms() -> Any:
    x, w = torch.randn(24, 24), torch.randn(24, 24)
    everything_leaves()

    def work(t: torch.Tensor, by: torch.Tensor = w) -> torch.Tensor:
        return (t @ by).tanh().sum(-1)

    f = torch.func
    out, pullback = f.vjp(work, x)
    linear, pushforward = f.linearize(work, x)
    return (
        f.vmap(work, in_dims=(0, None))(x, w),
        f.vmap(lambda t: t + torch.rand(24), randomness="different", chunk_size=8)(x),
        f.grad_and_value(lambda t: work(t).sum())(x),
        (out, pullback(x[0])),
        f.jvp(work, (x,), (w,)),
        (linear, pushforward(w)),
        f.jacrev(work)(x),
        f.jacfwd(work, argnums=1)(x, w),
        f.hessian(lambda t: work(t).sum())(x)[0, :3],
        f.functionalize(lambda t: t.clone().add_(1).view(-1).mul_(2))(x),
    )


@feature
def printing_inside_transforms() -> Any:
    texts = []

    def work(t: torch.Tensor) -> torch.Tensor:
        texts.append(repr(t * 2))
        return t.square().sum()

    x = torch.randn(8, 512)
    everything_leaves()
    results = (
        torch.vmap(work)(x),
        torch.func.grad(work)(x),
        torch.func.jvp(work, (x,), (x,)),
        torch.func.functionalize(work)(x),
    )
    return results, texts


@feature
def functional_modules() -> Any:
    model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 8))
    x, y = torch.randn(16, 32), torch.randn(16, 8)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    plain = torch.func.functional_call(model, weights, (x,))
    everything_leaves()

    def loss(weights: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(torch.func.functional_call(model, weights, (x,)), y)

    per_sample = torch.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, x, y)
    models = [nn.Linear(32, 32) for _ in range(3)]
    stacked, buffers = torch.func.stack_module_state(models)
    everything_leaves()
    many = torch.vmap(lambda p, b, t: torch.func.functional_call(models[0], (p, b), (t,)), in_dims=(0, 0, None))
    return plain, per_sample, loss(weights, x, y), with_gradients(many(stacked, buffers, x), *stacked.values())


# -- operators of one's own, and higher-order ones ---------------------------------------------------------------------


@torch.library.custom_op("torch_lms_features::scaled", mutates_args=())
def _scaled(x: torch.Tensor, by: float) -> torch.Tensor:
    return torch.from_numpy(x.numpy() * np.float32(by))


@torch.library.custom_op("torch_lms_features::add_to", mutates_args={"total"})
def _add_to(total: torch.Tensor, parts: list[torch.Tensor]) -> None:
    for part in parts:
        total += part


_scaled.register_autograd(
    lambda ctx, grad: (grad * ctx.by, None), setup_context=lambda ctx, inputs, output: setattr(ctx, "by", inputs[1])
)
_scaled.register_vmap(lambda info, dims, x, by: (_scaled(x, by), dims[0]))


@feature
def own_operators() -> Any:
    x, total = leaf(32, 32), torch.randn(32, 32)
    everything_leaves()
    y = _scaled(x * 2, 3.0)
    _add_to(total, [y.detach(), torch.ones(32, 32)])
    return with_gradients(y, x), total, torch.vmap(lambda t: _scaled(t, 2.0))(total)


@feature
def conditions_and_loops() -> Any:
    x = leaf(32, 32)
    everything_leaves()
    y = torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (x,))
    return with_gradients(y, x)


@feature
def flexible_attention() -> Any:
    q, k, v = (torch.randn(1, 2, 128, 16) for _ in range(3))
    everything_leaves()
    causal = create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device="cpu")
    return flex_attention(q, k, v, block_mask=causal, score_mod=lambda score, b, h, i, j: score + (i - j) * 0.1)


@feature
def attention() -> Any:
    q, k, v = (leaf(2, 2, 32, 16) for _ in range(3))
    mask = torch.randn(32, 32) > -1
    everything_leaves()
    results = [F.scaled_dot_product_attention(q, k, v, attn_mask=m) for m in (None, mask, mask.float() * 2)]
    results.append(F.scaled_dot_product_attention(q, k, v, is_causal=True))
    with sdpa_kernel(SDPBackend.MATH):
        results.append(F.scaled_dot_product_attention(q, k, v, dropout_p=0.3))
    return results, with_gradients(torch.stack(results), q, k, v)


# -- subclasses --------------------------------------------------------------------------------------------------------


class _Named(torch.Tensor):
    """A tensor with an attribute that follows it through functions, like MONAI's ``MetaTensor``."""

    note = ""

    def new_empty(self, *args: Any, **kwargs: Any) -> "_Named":
        return super().new_empty(*args, **kwargs).as_subclass(_Named)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        notes = [a.note for a in tree_leaves(args) if isinstance(a, _Named)]
        if isinstance(result, _Named) and notes:
            result.note = notes[0]
        return result


@feature
def a_subclass_of_functions() -> Any:
    x = torch.randn(32, 32).as_subclass(_Named)
    x.note = "scan"
    everything_leaves()
    y = (x @ x).relu_()[3:20]
    y[2] += 1
    everything_leaves()
    copies = copy.deepcopy(y), pickle.loads(pickle.dumps(y)), torch.stack([y, y]), y.numpy().copy().tolist()[0]
    parameter = nn.Parameter(x.clone())
    (parameter * 2).sum().backward()
    return y, y.note, type(y).__name__, copies, copies[0].note, repr(y), parameter.grad, y.tolist()[1]


class _Pair(torch.Tensor):
    """A number as the sum of two tensors. Dispatches by itself."""

    @staticmethod
    def __new__(cls, high: torch.Tensor, low: torch.Tensor) -> "_Pair":
        kept = {"dtype": high.dtype, "device": high.device, "requires_grad": high.requires_grad}
        return torch.Tensor._make_wrapper_subclass(cls, high.shape, strides=high.stride(), **kept)

    def __init__(self, high: torch.Tensor, low: torch.Tensor) -> None:
        self.high, self.low = high, low

    def __tensor_flatten__(self) -> Any:
        return ["high", "low"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, meta: Any, size: Any, stride: Any) -> "_Pair":
        return _Pair(inner["high"], inner["low"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def run(part: str) -> Any:
            return func(*tree_map(lambda a: getattr(a, part) if isinstance(a, _Pair) else a, (args, kwargs or {}))[0])

        high, low = run("high"), run("low")
        result = tree_map(lambda a, b: _Pair(a, b) if isinstance(a, torch.Tensor) else a, high, low)
        return return_and_correct_aliasing(func, args, kwargs or {}, result)


@feature
def a_subclass_that_dispatches() -> Any:
    pair = _Pair(torch.randn(32, 32), torch.randn(32, 32)).requires_grad_()
    everything_leaves()
    y = (pair @ torch.ones(32, 16)).tanh()
    y.sum().backward()
    z = pair.detach().clone()
    z.mul_(2)
    z[3:5].add_(1)
    everything_leaves()
    copied = copy.deepcopy(z), torch.load(saved(z), weights_only=False)
    parts = [(p.high, p.low) for p in (y, pair.grad, z, *copied)]
    return parts, held_parts(z)


def held_parts(pair: _Pair) -> list[torch.Tensor]:
    """The parts, held meanwhile where there is a session."""
    with torch_lms.pinned(pair) if torch_lms.is_enabled() else nullcontext():
        everything_leaves()
        return [pair.high + 1, pair.low + 1]


class _Doubling(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.sin else result


class _Negating(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return -result if func is torch.ops.aten.cos.default else result


@feature
def modes_of_the_user() -> Any:
    x = leaf(32, 32)
    everything_leaves()
    with _Doubling(), _Negating():
        y = x.cos() + torch.sin(x)
        everything_leaves()
        texts = repr(x), x.tolist()[0]
    return with_gradients(y, x), texts


# -- tools ------------------------------------------------------------------------------------------------------------


@feature
def counting_of_operations() -> Any:
    x, w = leaf(32, 32), leaf(32, 32)
    everything_leaves()
    with FlopCounterMode(display=False) as flops:
        (x @ w).tanh().sum().backward()
    assert flops.get_total_flops() == 3 * 2 * 32**3
    return flops.get_total_flops(), x.grad, w.grad


@feature
def profiling() -> Any:
    x, w, layer = leaf(32, 32), leaf(32, 32), nn.Linear(32, 32)
    everything_leaves()
    with torch.profiler.profile(record_shapes=True, profile_memory=True, with_stack=True, with_modules=True) as profile:
        for _ in range(2):
            layer(x @ w).tanh().sum().backward()
            profile.step()
    products = [event.count for event in profile.key_averages() if event.key == "aten::matmul"]
    return x.grad, w.grad, products


@feature
def distributions() -> Any:
    d = torch.distributions
    mean, scale = leaf(1024), leaf(1024)
    everything_leaves()
    normal = d.Normal(mean, F.softplus(scale))
    sample = normal.rsample()
    mixture = d.MixtureSameFamily(d.Categorical(logits=mean.view(256, 4)), d.Normal(mean.view(256, 4), 1.0))
    others = d.Gamma(F.softplus(scale), 2.0).rsample(), d.Dirichlet(F.softplus(mean.view(32, 32))).rsample()
    loss = (
        normal.log_prob(sample).sum()
        + d.kl_divergence(normal, d.Normal(0.0, 2.0)).sum()
        + mixture.log_prob(sample[:256]).sum()
    )
    loss = loss + sum(other.square().sum() for other in others)
    draws = (
        d.Bernoulli(logits=mean.detach()).sample(),
        d.Poisson(scale.detach().exp()).sample(),
        torch.multinomial(mean.detach().exp(), 600),
    )
    return with_gradients(loss, mean, scale), sample, others, draws, mixture.sample()


@feature
def generators() -> Any:
    generator = torch.Generator().manual_seed(3)
    state = torch.get_rng_state()
    everything_leaves()
    first = torch.randn(1024, generator=generator), torch.randn(1024)
    torch.set_rng_state(state)
    with torch.random.fork_rng():
        third = torch.randperm(20000)
    return first, torch.randn(1024), third, F.dropout(first[0], 0.3), generator.get_state()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", cases(FEATURES, BROKEN, BROKEN_CRASH))
def test_equal_to_the_bit(name: str) -> None:
    check(FEATURES[name], reference(name in CHANGED_BY_ANY_MODE))
