"""What programs use on a GPU beside plain operators: mixed precision, attention, compiled models, other allocators."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from bits import same_bits
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import torch_lms
from torch_lms.errors import UnsupportedError

GIB = 1 << 30
MIN_SIZE = 4096
STEPS = 6
"""Of a training: of the first a plan is made, which the others follow."""

Training = Callable[[torch.device], list[torch.Tensor]]
IsEqual = Callable[[Training], None]


@pytest.fixture
def is_equal(cuda: torch.device, reference: Callable[[Training, int], tuple[list[torch.Tensor], int]]) -> IsEqual:
    """Checks that planned steps at a half of the demand give the bits of stock."""

    def is_equal(training: Training) -> None:
        expected, demand = reference(training, MIN_SIZE)
        with torch_lms.session(limit=demand // 2, min_size=MIN_SIZE) as lms:
            results = training(cuda)
            lms.validate()
            stats = lms.stats()
        assert same_bits(results, expected)
        assert stats.evictions > 0
        assert stats.planned_steps > 0

    return is_equal


class Attentive(nn.Module):
    def __init__(self, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.inner, self.outer = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.inner(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(*parts, is_causal=True, dropout_p=0.1)
        return x + self.outer(attended.transpose(1, 2).flatten(2))


def attention(kernel: SDPBackend, device: torch.device) -> list[torch.Tensor]:
    """A decoder's blocks in bfloat16."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Attentive() for _ in range(4))).to(device)
    update = torch.optim.AdamW(model.parameters(), fused=True)
    x = torch.randn(4, 256, 256, device=device)
    losses = []
    for _ in range(STEPS):
        with sdpa_kernel(kernel), torch.autocast(device.type, torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()
        update.step()
        update.zero_grad()
        losses.append(loss.detach())
    return [*losses, *(p.detach() for p in model.parameters())]


KERNELS = [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name.lower())
def test_attention(kernel: SDPBackend, is_equal: IsEqual) -> None:
    is_equal(partial(attention, kernel))


def scaled(device: torch.device) -> list[torch.Tensor]:
    """Convolutions in float16, whose first gradients are infinite: the scaler leaves such a step out."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1))
    model = nn.Sequential(*layers, nn.ReLU(), nn.Conv2d(32, 8, 1)).to(device, memory_format=torch.channels_last)
    update, scaler = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), torch.amp.GradScaler(init_scale=2.0**40)
    x = torch.randn(8, 3, 64, 64, device=device).to(memory_format=torch.channels_last)
    losses = []
    for _ in range(30):
        update.zero_grad()
        with torch.autocast(device.type, torch.float16):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(update)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(update)
        scaler.update()
        losses.append(loss.detach())
    return [*losses, torch.tensor(scaler.get_scale()), *(p.detach() for p in model.parameters())]


def test_scaled_gradients(is_equal: IsEqual) -> None:
    is_equal(scaled)


def convolutions(device: torch.device) -> list[torch.Tensor]:
    """Needs some 5 GB, and cuDNN workspaces of a few hundred MB."""
    torch.manual_seed(0)
    blocks = [(nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()) for _ in range(7)]
    layers = [layer for block in blocks for layer in block]
    model = nn.Sequential(nn.Conv2d(3, 64, 7, stride=2, padding=3), *layers).to(device)
    update = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(128, 3, 224, 224, device=device)
    losses = []
    for _ in range(STEPS):
        update.zero_grad()
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()
        update.step()
        losses.append(loss.detach())
    return [*losses, *(p.detach() for p in model.parameters())]


def test_convolutions_on_a_full_device(cuda: torch.device, allow: Callable[[int], None]) -> None:
    """cuDNN has another algorithm, which rounds in another way, for each that finds no room for its workspace (N28)."""
    torch.cuda.reset_peak_memory_stats(cuda)
    expected = [tensor.cpu() for tensor in convolutions(cuda)]
    allow(int(0.6 * torch.cuda.max_memory_allocated(cuda)))
    with torch_lms.session() as lms:
        results = [tensor.cpu() for tensor in convolutions(cuda)]
        stats = lms.stats()
    assert stats.evictions > 0
    assert stats.planned_steps > 0
    assert same_bits(results, expected)


def compiled(backend: str, device: torch.device) -> list[torch.Tensor]:
    torch.compiler.reset()
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(6))).to(device)
    run = torch.compile(model, backend=backend, dynamic=False)
    update = torch.optim.AdamW(model.parameters(), fused=True)
    x = torch.randn(1024, 512, device=device)
    losses = []
    for _ in range(STEPS):
        loss = run(x).square().mean()
        loss.backward()
        update.step()
        update.zero_grad()
        losses.append(loss.detach())
    return [*losses, *(p.detach() for p in model.parameters())]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["lms", "inductor"])
def test_compiled_models(backend: str, cuda: torch.device) -> None:
    expected = compiled(backend, cuda)
    with torch_lms.session(limit="64GiB", min_size=MIN_SIZE) as lms:
        fits = compiled(backend, cuda)
        demand = lms.stats().demand_bytes
    with torch_lms.session(limit=demand * 3 // 4, min_size=MIN_SIZE) as lms:
        results = compiled(backend, cuda)
        lms.validate()
        assert lms.stats().evictions > 0
    if backend == "lms":  # cut in pieces by what is in force while it is compiled
        expected = fits
    assert same_bits(results, expected)


def test_graphs_are_refused(cuda: torch.device) -> None:
    x = torch.ones(1024, device=cuda)
    before = torch.cuda.CUDAGraph()
    with torch.cuda.graph(before):
        y = x * 2
    with torch_lms.session(limit=0, min_size=MIN_SIZE):
        with pytest.raises(UnsupportedError, match="graph"):
            before.replay()
        with pytest.raises(UnsupportedError, match="graph"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            pass
        assert (x + 1).sum() == 2048
    before.replay()
    assert y.sum() == 2048


def test_a_page_of_more_than_two_gib(device: torch.device) -> None:
    if torch.accelerator.get_memory_info(device)[1] < 16 * GIB:
        pytest.skip("needs 16 GiB of the device")
    with torch_lms.session(limit=4 * GIB) as lms:
        large = torch.arange(3 * GIB // 8, device=device)
        other = torch.ones(2 * GIB // 4, device=device).mul_(3)
        large.add_(1)
        assert lms.stats().evictions > 0
        assert other.sum(dtype=torch.float64) == 3 * other.numel()
        assert torch.equal(large[-3:].cpu(), torch.arange(large.numel() - 3, large.numel()) + 1)
        assert int(large.sum()) == large.numel() * (large.numel() + 1) // 2


def test_operators_of_the_host_take_no_room_of_the_device(device: torch.device) -> None:
    with torch_lms.session(limit="64GiB", min_size=MIN_SIZE) as lms:
        on_host = torch.zeros(1 << 22).add_(1)
        x = torch.ones(1 << 20, device=device)
        on_host[: x.numel()] += (x * 2).cpu()
        assert lms.stats().resident_bytes == x.nbytes
        assert on_host.sum() == (1 << 22) + 2 * (1 << 20)


CHILD = """
import json, sys
import torch, torch_lms
from torch import nn

def train():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(8))).cuda()
    update = torch.optim.Adam(model.parameters(), foreach=True)
    losses = []
    for step in range(6):
        x = torch.randn(1024 + 64 * (step % 3), 1024, device="cuda")
        loss = model(x).square().mean()
        loss.backward()
        update.step()
        update.zero_grad()
        losses.append(loss.item().hex())
    return losses

expected = train()
with torch_lms.session(limit="64GiB", min_size=65536) as lms:
    train()
    demand = lms.stats().demand_bytes
torch.cuda.empty_cache()
with torch_lms.session(limit=demand // 2, min_size=65536) as lms:
    found = train()
    stats = lms.stats()
json.dump({"equal": found == expected, "evictions": stats.evictions, "recoveries": stats.recoveries}, sys.stdout)
"""


def _children(count: int, **environment: str) -> None:
    root = Path(__file__).parents[2]
    around = dict(os.environ, PYTHONPATH=os.pathsep.join((str(root / "src"), os.environ.get("PYTHONPATH", ""))))
    command = [sys.executable, "-c", CHILD]
    started = [
        subprocess.Popen(command, env={**around, **environment}, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    for child in started:
        said, _ = child.communicate(timeout=240)
        assert child.returncode == 0
        found = json.loads(said)
        assert found["equal"]
        assert found["evictions"] > 0


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("setting", ["expandable_segments:True", "backend:cudaMallocAsync"])
def test_other_allocators(setting: str) -> None:
    _children(1, PYTORCH_ALLOC_CONF=setting, PYTORCH_CUDA_ALLOC_CONF=setting)


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("cuda")
def test_two_processes() -> None:
    _children(2)
