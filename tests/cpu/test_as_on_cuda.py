"""Steps traced as on a GPU, on tensors of the CPU, against the same steps on fake CUDA tensors.

A build of PyTorch for CUDA makes these without a GPU, too. What it cannot tell there, or differs, is named.
"""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from nets import UNet3d, encoder
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from tests.fake_cuda import autocast, backward
from torch_lms import trace_step
from torch_lms.capture.schema import describe
from torch_lms.trace import Trace

needs_cuda = pytest.mark.skipif(
    torch.version.cuda is None, reason="this build of PyTorch is not for CUDA: it makes no fake CUDA tensors"
)

MIN_SIZE = 256
"""Bytes. Smaller are seeds of random numbers on a GPU, lengths of bags in an EmbeddingBag on the CPU, and statistics of
batch norm, which on the CPU have half precision under autocast."""

ANOTHER_NAME = {
    "aten::cudnn_batch_norm": "aten::native_batch_norm",
    "aten::cudnn_batch_norm_backward": "aten::native_batch_norm_backward",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": "aten::_scaled_dot_product_flash_attention_backward",
}
"""Kernels that make results of the same sizes."""

NEEDS_A_GPU = "PyTorch asks cuDNN or the driver, which are not there without a GPU"

Make = Callable[[], nn.Module]


class Calls(nn.Module):
    """A function, of modules and inputs."""

    def __init__(self, function: Callable[..., Tensor], *modules: nn.Module) -> None:
        super().__init__()
        self.function, self.its = function, nn.ModuleList(modules)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*self.its, *inputs)


def whole(size: int, x: Tensor) -> Tensor:
    return torch.ones(size, dtype=torch.long, device=x.device)


def lengths(x: Tensor, target: int) -> tuple[Tensor, Tensor]:
    steps, batch, _ = x.shape
    return torch.full((batch,), steps), torch.full((batch,), target)


IMAGES, SEQUENCES, ROWS = (2, 4, 16, 16), (4, 32, 64), (16, 32)

STEPS: dict[str, tuple[Make, tuple[tuple[int, ...], ...]]] = {
    "linear": (lambda: nn.Linear(32, 16), (ROWS,)),
    "linear, sequences": (lambda: nn.Linear(64, 16), (SEQUENCES,)),
    "bilinear": (lambda: nn.Bilinear(32, 32, 4), (ROWS, ROWS)),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.AvgPool2d(2)), (IMAGES,)),
    "convolution, padded": (lambda: nn.Conv2d(4, 8, 3, padding="same"), (IMAGES,)),
    "convolution, of each channel": (lambda: nn.Conv2d(4, 4, 3, groups=4), (IMAGES,)),
    "convolution, transposed": (lambda: nn.ConvTranspose3d(4, 2, 2, 2), ((2, 4, 8, 8, 8),)),
    "channels last": (
        lambda: Calls(lambda conv, x: conv(x.contiguous(memory_format=torch.channels_last)), nn.Conv2d(4, 4, 3)),
        (IMAGES,),
    ),
    "batch norm": (lambda: nn.Sequential(nn.Conv2d(4, 32, 3), nn.BatchNorm2d(32), nn.ReLU()), (IMAGES,)),
    "batch norm, evaluating": (lambda: nn.BatchNorm2d(4).eval(), (IMAGES,)),
    "instance norm": (lambda: nn.InstanceNorm2d(4, affine=True), (IMAGES,)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (IMAGES,)),
    "layer norm": (lambda: nn.LayerNorm(32), (ROWS,)),
    "RMS norm": (lambda: nn.RMSNorm(32), (ROWS,)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(32, 16)), (ROWS,)),
    "local response norm": (lambda: nn.LocalResponseNorm(2), (IMAGES,)),
    "dropout": (lambda: nn.Dropout(0.3), (IMAGES,)),
    "dropout of channels": (lambda: nn.Dropout2d(0.3), (IMAGES,)),
    "alpha dropout": (lambda: nn.AlphaDropout(0.3), (IMAGES,)),
    "activations": (
        lambda: nn.Sequential(
            nn.SiLU(), nn.Mish(), nn.Hardswish(), nn.Softplus(), nn.GELU(), nn.GLU(), nn.LogSigmoid()
        ),
        (IMAGES,),
    ),
    "activations, random": (lambda: nn.RReLU(), (IMAGES,)),
    "activations, learned": (lambda: nn.PReLU(), (IMAGES,)),
    "softmax": (lambda: nn.Softmax(-1), (ROWS,)),
    "pooling": (lambda: nn.Sequential(nn.MaxPool2d(2), nn.AdaptiveMaxPool2d(4), nn.LPPool2d(2, 2)), (IMAGES,)),
    "interpolation": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (IMAGES,)),
    "sampling at places": (
        lambda: Calls(lambda x, at: F.grid_sample(x, at, align_corners=False)),
        (IMAGES, (2, 8, 8, 2)),
    ),
    "embedding": (lambda: Calls(lambda table, x: table(whole(40, x)), nn.Embedding(10, 32)), (ROWS,)),
    "embedding of bags": (lambda: Calls(lambda t, x: t(whole(40, x).view(5, 8)), nn.EmbeddingBag(10, 32)), (ROWS,)),
    "cross entropy": (lambda: Calls(lambda x: F.cross_entropy(x, whole(16, x))), (ROWS,)),
    "cross entropy, smoothed": (
        lambda: Calls(lambda x: F.cross_entropy(x, whole(16, x), label_smoothing=0.1)),
        (ROWS,),
    ),
    "losses": (lambda: Calls(lambda a, b: F.huber_loss(a, b) + F.kl_div(a, b) + F.l1_loss(a, b)), (ROWS, ROWS)),
    "distances": (lambda: Calls(torch.cdist), (ROWS, ROWS)),
    "sums": (lambda: Calls(lambda x: x.cumsum(0) + x.std(0) + x.logsumexp(0) + F.normalize(x)), (ROWS,)),
    "sums of products": (
        lambda: Calls(lambda linear, x: linear(x).cumsum(0) + linear(x).norm(), nn.Linear(32, 32)),
        (ROWS,),
    ),
    "places": (lambda: Calls(lambda x: x[whole(5, x)].sort(0)[0].topk(2, 0)[0]), (ROWS,)),
    "attention": (lambda: Calls(lambda q: F.scaled_dot_product_attention(q, q, q)), ((2, 4, 16, 32),)),
    "attention, dropout": (
        lambda: Calls(lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.1)),
        ((2, 4, 16, 32),),
    ),
    "attention with its weights": (
        lambda: Calls(lambda heads, x: heads(x, x, x)[0], nn.MultiheadAttention(64, 4, dropout=0.1, batch_first=True)),
        (SEQUENCES,),
    ),
    "encoder": (lambda: encoder(1, 64), (SEQUENCES,)),
    "3D U-Net": (lambda: UNet3d(4), ((1, 1, 16, 16, 16),)),
    "cell of an RNN": (lambda: nn.RNNCell(32, 16), (ROWS,)),
    "cell of an LSTM": (lambda: Calls(lambda cell, x: cell(x)[0], nn.LSTMCell(32, 16)), (ROWS,)),
    "cell of a GRU": (lambda: nn.GRUCell(32, 16), (ROWS,)),
    "LSTM": (lambda: Calls(lambda layer, x: layer(x)[0], nn.LSTM(64, 32)), (SEQUENCES,)),
    "connectionist temporal classification": (
        lambda: Calls(lambda x: F.ctc_loss(x.log_softmax(-1), torch.ones(4, 20).long().to(x.device), *lengths(x, 20))),
        ((64, 4, 40),),
    ),
}

UNDER_AUTOCAST = [name for name in STEPS if not name.startswith("attention") or name == "attention with its weights"]

DIFFERS_UNDER_AUTOCAST = {
    "sums of products": "a cumulated sum and a norm read half precision on a GPU, and a float32 copy of it here",
    "cell of an RNN": "the casts come in another order",
    "cell of an LSTM": "the state is cast, too",
}

DIFFERS = {
    "cell of a GRU": f"before 2.15 {NEEDS_A_GPU}",
    "LSTM": NEEDS_A_GPU,
    "connectionist temporal classification": NEEDS_A_GPU,
}


def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: None = None, dropout_p: float = 0.0, is_causal: bool = False
) -> Tensor:
    """What a GPU would choose, if there were one to ask whether it can."""
    return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal)[0]


def traced(name: str, device: str, amp: torch.dtype | None = None) -> Trace:
    """A training step on fake tensors: of the CPU, traced as on a GPU; or of CUDA, traced as it is."""
    make, shapes = STEPS[name]
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device(device):
        arguments = (make(), *(torch.ones(shape, requires_grad=True) for shape in shapes))

    def trained(model: nn.Module, *inputs: Tensor) -> None:
        with nullcontext() if amp is None else autocast(amp) if device == "cuda" else torch.autocast("cpu", amp):
            result = model(*inputs)
        backward(result.float().mean())
        for tensor in (*model.parameters(), *inputs):
            tensor.grad = None

    return trace_step(trained, arguments, device="cuda" if device == "cpu" else "cpu", min_size=MIN_SIZE)


def operations(trace: Trace) -> list[tuple[str, list[int]]]:
    """Names of what was run, and bytes of what each made. Without the copies by which gradients of attention differ."""
    found = [
        (ANOTHER_NAME.get(op.name, op.name), sorted(trace.pages[page].nbytes for page in op.creates))
        for op in trace.ops
    ]
    has_attention = any("flash_attention" in name for name, _ in found)
    return [op for op in found if not (has_attention and op[0] == "aten::clone")]


def cases(names: Iterable[str], differs: dict[str, str]) -> list[Any]:
    """Those that differ are expected to fail: a newer PyTorch may know more without a GPU."""
    marks = {name: pytest.mark.xfail(reason=reason, strict=False) for name, reason in differs.items()}
    return [pytest.param(name, marks=marks.get(name, ())) for name in names]


@needs_cuda
@pytest.mark.parametrize("name", cases(STEPS, DIFFERS))
def test_a_step_traced_as_on_a_gpu_is_that_of_a_build_for_cuda(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_cuda = operations(traced(name, "cpu"))
    monkeypatch.setattr(F, "scaled_dot_product_attention", flash_attention)
    assert as_on_cuda == operations(traced(name, "cuda"))


@needs_cuda
@pytest.mark.parametrize("name", cases(UNDER_AUTOCAST, DIFFERS | DIFFERS_UNDER_AUTOCAST))
def test_so_it_is_under_autocast(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_cuda = operations(traced(name, "cpu", torch.float16))
    monkeypatch.setattr(F, "scaled_dot_product_attention", flash_attention)
    assert as_on_cuda == operations(traced(name, "cuda", torch.float16))


@needs_cuda
@pytest.mark.parametrize("name", ["attention with its weights", "cross entropy", "encoder", "group norm", "3D U-Net"])
def test_so_it_is_under_autocast_to_bfloat16(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_cuda = operations(traced(name, "cpu", torch.bfloat16))
    monkeypatch.setattr(F, "scaled_dot_product_attention", flash_attention)
    assert as_on_cuda == operations(traced(name, "cuda", torch.bfloat16))


@needs_cuda
def test_what_has_a_kernel_on_gpus_is_not_taken_apart() -> None:
    """On a GPU it would round in another way than without LMS."""
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::") and "\nCUDA: registered" in torch._C._dispatch_dump(name):
            packet, _, overload = name.removeprefix("aten::").partition(".")
            assert not describe(getattr(getattr(torch.ops.aten, packet), overload or "default")).composite, name
