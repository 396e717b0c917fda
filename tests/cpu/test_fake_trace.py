"""Steps traced on tensors without bytes, against the same steps recorded while they ran."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from nets import UNet3d, encoder
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

import torch_lms
from torch_lms import trace_step
from torch_lms.errors import UnsupportedError, UsageError
from torch_lms.trace import Trace, demand_curve

MIN_SIZE = 1 << 12


class Net(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width)
        self.second, self.last = nn.Conv2d(width, width, 3, padding=1), nn.Linear(width * 64, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu_(self.norm(self.first(x)))
        x = F.max_pool2d(x + self.second(x), 2)
        return self.last(F.dropout(x, 0.2, self.training).flatten(1))


class Checkpointed(Net):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


class Autocast(Net):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x).float()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.last = nn.LSTM(48, 32, num_layers=2, batch_first=True, bidirectional=True), nn.Linear(64, 48)

    def forward(self, x: Tensor) -> Tensor:
        return F.mse_loss(self.last(self.cells(x)[0]), x)


class Speech(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(16, 40)

    def forward(self, x: Tensor) -> Tensor:
        steps, batch, _ = x.shape
        lengths = torch.full((batch,), steps), torch.full((batch,), 20)
        return F.ctc_loss(self.last(x).log_softmax(-1), torch.ones(batch, 20, dtype=torch.long), *lengths)


class PartlyIdle(Net):
    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Linear(128, 128)


def images() -> Tensor:
    return torch.ones(8, 3, 16, 16)


STEPS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], str]] = {
    "convolutions, sgd": (Net, images, "sgd"),
    "convolutions, adam": (Net, images, "adamw"),
    "partly idle": (PartlyIdle, images, "adamw"),
    "checkpointed": (Checkpointed, images, "sgd"),
    "autocast": (Autocast, images, "sgd"),
    "channels last": (Net, lambda: images().to(memory_format=torch.channels_last), "sgd"),
    "3D U-Net": (lambda: UNet3d(4), lambda: torch.ones(1, 1, 16, 16, 16), "sgd"),
    "speech": (Speech, lambda: torch.ones(64, 4, 16), "sgd"),
    "recurrent, mse": (Recurrent, lambda: torch.ones(16, 24, 48), "adamw"),
    "encoder": (lambda: encoder(2, 64), lambda: torch.ones(4, 32, 64), "adamw"),
}


def recorded(model: nn.Module, x: Tensor, optimizer: str, limit: int) -> Trace:
    """The same, while it runs."""
    kinds = {"sgd": lambda p: torch.optim.SGD(p, 0.01, 0.9), "adamw": torch.optim.AdamW}
    update = kinds[optimizer](model.parameters())
    with torch_lms.session(limit=limit, min_size=MIN_SIZE, policy="planned") as lms:
        for _ in range(3):
            model(x).float().mean().backward()
            update.step()
            update.zero_grad()
        trace = lms.trace()
    assert trace is not None
    return trace


def held(trace: Trace, name: str) -> list[int]:
    """Bytes created by each operation of that name, in order."""
    return [sum(trace.pages[page].nbytes for page in op.creates) for op in trace.ops if op.name == name]


@pytest.mark.parametrize("name", STEPS)
def test_it_says_what_happens(name: str) -> None:
    make, given, optimizer = STEPS[name]
    told = trace_step(make(), (given(),), optimizer, min_size=MIN_SIZE)
    limit = told.working_set_bytes * 11 // 10  # small results have to fit, too, or an operation is done in parts
    happened = recorded(make(), given(), optimizer, limit)
    assert demand_curve(told).demand_bytes == pytest.approx(demand_curve(happened).demand_bytes, rel=0.05)
    assert told.working_set_bytes == pytest.approx(happened.working_set_bytes, rel=0.1)
    for kind in ("aten::convolution", "aten::convolution_backward", "aten::mm", "aten::addmm"):
        assert sorted(held(told, kind)) == sorted(held(happened, kind)), kind


GATES = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}


@pytest.mark.parametrize("kind", GATES)
def test_on_a_gpu_a_recurrent_layer_is_one_operation(kind: type[nn.RNNBase]) -> None:
    steps, batch, hidden = 24, 16, 32
    model = kind(48, hidden, num_layers=2, bidirectional=True, batch_first=True, dropout=0.5)
    x = torch.ones(batch, steps, 48)
    shapes = [given.shape for given in pytree.tree_leaves(model(x))]

    def loss(outputs: Any) -> Tensor:
        assert [given.shape for given in pytree.tree_leaves(outputs)] == shapes
        return outputs[0].sum()

    trace = trace_step(model, (x,), "sgd", loss=loss, device="cuda", min_size=MIN_SIZE)
    element = steps * batch * hidden * 4
    assert held(trace, "aten::mkldnn_rnn_layer") == 4 * [element * (1 + GATES[kind] + 1)]  # output, gates, cell states
    assert held(trace, "aten::native_dropout") == [2 * element + 2 * element // 4]


def test_arithmetic_is_counted() -> None:
    trace = trace_step(nn.Linear(512, 256, bias=False), (torch.ones(1024, 512),), "sgd", min_size=1)
    products = [op.work for op in trace.ops if op.work is not None and op.work.kind == "matrix"]
    assert [work.flops for work in products] == [2 * 1024 * 512 * 256] * 2
    assert products[0].nbytes == 4 * (1024 * 512 + 512 * 256 + 1024 * 256)
    assert {work.dtype for work in products} == {"float32"}


def test_kinds_are_told_apart() -> None:
    net = nn.Sequential(nn.Conv2d(16, 16, 3, groups=16), nn.Conv2d(16, 8, 1), nn.BatchNorm2d(8), nn.ReLU())
    trace = trace_step(net, (torch.ones(4, 16, 32, 32),), min_size=1)
    assert [op.work.kind for op in trace.ops if op.work is not None and op.work.nbytes > 1000] == [
        "depthwise",
        "convolution",
        "normalization",
        "elementwise",
    ]


def test_convolutions_over_volumes_are_a_kind_of_their_own() -> None:
    trace = trace_step(nn.Conv3d(4, 4, 3), (torch.ones(1, 4, 8, 8, 8),), "sgd", min_size=1)
    kinds = {op.name: op.work.kind for op in trace.ops if op.work is not None}
    assert kinds["aten::convolution"] == kinds["aten::convolution_backward"] == "convolution3d"


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(16, 16, 3, groups=16),
        nn.Conv2d(16, 32, 3, stride=2, groups=4),
        nn.ConvTranspose2d(16, 8, 3, stride=2, groups=4),
        nn.Conv2d(16, 8, 3),
        nn.ConvTranspose2d(16, 8, 3, stride=2),
    ],
    ids=str,
)
def test_backward_of_a_convolution_takes_twice_what_forward_took(layer: nn.Module) -> None:
    """And in groups so much less."""
    given = torch.ones(2, 16, 9, 9)
    trace = trace_step(nn.Sequential(nn.Conv2d(16, 16, 1), layer), (given,), "sgd", min_size=1)
    flops = [op.work.flops for op in trace.ops if op.work is not None and "convolution" in op.name]
    positions = given[0, 0].numel() if isinstance(layer, nn.ConvTranspose2d) else layer(given)[0, 0].numel()
    assert flops[1] == 2 * 2 * positions * layer.weight.numel()
    assert flops[2] == 2 * flops[1]


def test_nothing_is_allocated_and_nothing_changes() -> None:
    model = Net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trace = trace_step(model, (images(),), "sgd", min_size=MIN_SIZE)
    assert trace.ops
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_is_never_used_is_there_all_the_same() -> None:
    class Idle(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 4)
            self.idle = nn.Parameter(torch.ones(1 << 20))

    assert demand_curve(trace_step(Idle(), (torch.ones(2, 4),), min_size=1)).demand_bytes > 4 << 20
    assert demand_curve(trace_step(Idle(), (torch.ones(2, 4),), "sgd", min_size=1)).demand_bytes > 4 << 20


def test_a_function_may_train_by_itself() -> None:
    model = nn.Linear(64, 64)

    def step(model: nn.Module, x: Tensor) -> None:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    trace = trace_step(step, (model, torch.ones(64, 64)), min_size=MIN_SIZE)
    assert "aten::mm" in [op.name for op in trace.ops]


def test_on_a_gpu_dropout_keeps_bytes_and_optimizers_take_lists() -> None:
    there = trace_step(Net(), (images(),), "sgd", device="cuda", min_size=MIN_SIZE)
    here = trace_step(Net(), (images(),), "sgd", min_size=MIN_SIZE)
    assert "aten::native_dropout" in [op.name for op in there.ops]
    assert "aten::native_dropout" not in [op.name for op in here.ops]
    assert any(op.name.startswith("aten::_foreach_") for op in there.ops)
    result = 8 * 8 * 8 * 8
    assert held(there, "aten::native_dropout") == [4 * result + result]
    assert held(here, "aten::empty_like") == [4 * result]


@pytest.mark.parametrize(
    "attend",
    [
        lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.1),
        lambda q: F.scaled_dot_product_attention(q, q, q, None, 0.1),
        lambda q: F.scaled_dot_product_attention(q, q, q, None, 0.1, True),
        lambda q: F.scaled_dot_product_attention(query=q, key=q, value=q, dropout_p=0.1),
    ],
)
def test_on_a_gpu_attention_with_dropout_is_one_operation(attend: Callable[[Tensor], Tensor]) -> None:
    trace = trace_step(attend, (torch.ones(2, 4, 16, 32),), device="cuda", min_size=1)
    assert [op.name for op in trace.ops] == ["aten::_scaled_dot_product_flash_attention_for_cpu"]


def names(trace: Trace) -> set[str]:
    return {op.name for op in trace.ops}


@pytest.mark.parametrize("needs_weights", [False, True])
def test_on_a_gpu_several_heads_have_its_attention_and_dropout(needs_weights: bool) -> None:
    heads = nn.MultiheadAttention(32, 4, dropout=0.1)

    def step(heads: nn.Module, x: Tensor) -> None:
        heads(x, x, x, need_weights=needs_weights)[0].sum().backward()

    found = names(trace_step(step, (heads, torch.ones(16, 4, 32)), device="cuda", min_size=1))
    assert "aten::bernoulli_.float" not in found
    assert ("aten::native_dropout" in found) == needs_weights
    assert ("aten::_scaled_dot_product_flash_attention_for_cpu" in found) != needs_weights


def test_on_a_gpu_the_gates_of_a_cell_are_one_operation() -> None:
    def step(cell: nn.Module, x: Tensor) -> None:
        cell(x)[0].sum().backward()

    trace = trace_step(step, (nn.LSTMCell(16, 32), torch.ones(8, 16)), device="cuda", min_size=1)
    state = 8 * 32 * 4
    assert sorted(held(trace, "aten::_thnn_fused_lstm_cell")) == [state + state + 4 * state]
    assert "aten::sigmoid_" not in names(trace)


@pytest.mark.parametrize("affine", [True, False])
def test_on_a_gpu_rms_norm_is_one_operation_in_each_direction(affine: bool) -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.RMSNorm(32, elementwise_affine=affine))
    there = trace_step(model, (torch.ones(16, 32),), "sgd", device="cuda", min_size=1)
    assert held(there, "aten::_fused_rms_norm") == [16 * 32 * 4 + 16 * 4]
    assert held(there, "aten::_fused_rms_norm_backward") == [16 * 32 * 4 + 32 * 4 * affine]
    assert "aten::rsqrt" not in names(there)
    assert "aten::rsqrt" in names(trace_step(model, (torch.ones(16, 32),), "sgd", min_size=1))


def test_on_a_gpu_log_sigmoid_keeps_no_buffer() -> None:
    given = (nn.LogSigmoid(), (torch.ones(16, 32),))
    assert held(trace_step(*given, device="cuda", min_size=1), "aten::log_sigmoid_forward") == [16 * 32 * 4]
    assert held(trace_step(*given, min_size=1), "aten::log_sigmoid_forward") == [2 * 16 * 32 * 4]


def test_on_a_gpu_autocast_keeps_norms_and_softmax_in_float32() -> None:
    """On the CPU they take half precision, and pooling of volumes does not."""
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64), nn.Softmax(-1))
    given = (model, (torch.ones(32, 64),))
    there = trace_step(*given, device="cuda", amp=torch.float16, min_size=MIN_SIZE)
    here = trace_step(*given, amp=torch.float16, min_size=MIN_SIZE)
    for name in ("aten::native_layer_norm", "aten::_softmax"):
        assert held(there, name) == [32 * 64 * 4]
        assert held(here, name) == [32 * 64 * 2]

    volumes = nn.Sequential(nn.Conv3d(4, 4, 1), nn.MaxPool3d(2)), (torch.ones(1, 4, 16, 16, 16),)
    results = 4 * 8 * 8 * 8
    there = trace_step(*volumes, device="cuda", amp=torch.float16, min_size=MIN_SIZE)
    here = trace_step(*volumes, amp=torch.float16, min_size=MIN_SIZE)
    assert held(there, "aten::max_pool3d_with_indices") == [results * (2 + 8)]
    assert held(here, "aten::max_pool3d_with_indices") == [results * (4 + 8)]


def test_on_a_gpu_autocast_widens_scores_after_their_logarithm_of_softmax() -> None:
    def step(model: nn.Module, x: Tensor) -> None:
        F.cross_entropy(model(x), torch.ones(64, dtype=torch.long)).backward()

    given = (step, (nn.Linear(32, 64), torch.ones(64, 32)))
    there = trace_step(*given, device="cuda", amp=torch.float16, min_size=MIN_SIZE)
    assert held(there, "aten::_log_softmax") == [64 * 64 * 2]


class ReadsAValue(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if bool(x.sum() > 0) else x


class Counts(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[x > 0]


class LeavesPyTorch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(x.numpy() * 2)


def test_operators_that_tell_nothing_are_named() -> None:
    with torch.library._scoped_library("torch_lms_fake", "FRAGMENT") as library:
        library.define("untold(Tensor x) -> Tensor")
        library.impl("untold", lambda x: x + 1, "CPU")
        with pytest.raises(UnsupportedError, match=r"torch_lms_fake.untold.*test_fake_trace\.py.*register_fake"):
            trace_step(lambda x: torch.ops.torch_lms_fake.untold(x), (torch.ones(4),))


def test_values_that_depend_on_nothing_are_known() -> None:
    def step(x: Tensor) -> Tensor:
        axes = torch.arange(1, x.dim()).tolist()
        return x.sum(axes) * torch.linspace(0, 1, 5)[2].item() if bool(torch.ones(3).sum() > 2) else x

    assert [op.name for op in trace_step(step, (torch.ones(2, 8, 8),), min_size=1).ops][-1] == "aten::mul.Tensor"
    with pytest.raises(UnsupportedError, match="depends on values"):
        trace_step(lambda x: x * torch.zeros(1).add_(x.sum()).item(), (torch.ones(4),))


@pytest.mark.parametrize("model", [ReadsAValue(), Counts(), LeavesPyTorch()])
def test_what_depends_on_values_is_refused(model: nn.Module) -> None:
    with pytest.raises(UnsupportedError, match=r"depends on values.*test_fake_trace\.py:"):
        trace_step(model, (torch.ones(4),))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"optimizer": "sdg"}, "optimizer must be one of torch.optim.*got 'sdg'"),
        ({"optimizer": "sgd", "loss": lambda y: y}, "the loss must be a scalar.*shape"),
        ({"device": "tpu"}, "device must be one of 'cpu', 'cuda'; got 'tpu'"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        trace_step(nn.Linear(4, 4), (torch.ones(2, 4),), **arguments)


def test_parameters_from_elsewhere() -> None:
    model = nn.Linear(4, 4)
    with pytest.raises(UsageError, match="pass its module as an argument"):
        trace_step(lambda x: model(x), (torch.ones(2, 4),))
    assert model.weight.grad is None


def test_nothing_to_train() -> None:
    with pytest.raises(UsageError, match="needs parameters"):
        trace_step(nn.ReLU(), (torch.ones(2),), "sgd")
