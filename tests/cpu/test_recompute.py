"""Pages that are dropped and recomputed (N16). The link is taken to be slow: whatever can be recomputed is."""

import io
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bits import same_bits
from nets import UNet3d, encoder
from torch import Tensor, nn
from torch.nn import functional as F
from traffic import ADAM, LARGE, MIN_SIZE, SGD, STEPS, WARM_UP, Step, demand_of, measure, one_thread, training

import torch_lms
from torch_lms.demo.train import UNet
from torch_lms.engine import engine
from torch_lms.planner import Speeds, floor_bytes
from torch_lms.runtime.recompute import _Program


@pytest.fixture(autouse=True)
def slow_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "Speeds", lambda *_: Speeds(1e5, 1e5))


class Convolutions(nn.Module):
    """Batch norm, activations in place, dropout, pooling, skip connections, a tensor that autograd does not save."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.body = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
                nn.Dropout(0.1),
            )
            for _ in range(5)
        )
        self.last = nn.Linear(width * 8 * 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.first(x) * 2)
        for block in self.body:
            x = x + block(x)
        return self.last(F.max_pool2d(x, 4).flatten(1))


def autocast(model: nn.Module) -> nn.Module:
    class Autocast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = model

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return self.inside(x).float()

    return Autocast()


NETS: dict[str, Callable[[], tuple[nn.Module, Step]]] = {
    "convolutions": partial(training, Convolutions, (8, 3, 32, 32)),
    "the demo's U-Net": partial(training, partial(UNet, 3, (4, 8, 16)), (1, 1, 32, 32, 32)),
    "3D U-Net, 4 micro-batches": partial(training, partial(UNet3d, 4), (1, 1, 24, 24, 24), accumulate=4),
    "encoder with Adam": partial(training, partial(encoder, 3, 64), (16, 64, 64), ADAM),
    "bfloat16 under autocast": partial(training, lambda: autocast(Convolutions(16)), (8, 3, 32, 32)),
    "double": partial(training, lambda: Convolutions().double(), (4, 3, 32, 32)),
}


@pytest.mark.parametrize("share", [2, 4, 8])
@pytest.mark.parametrize("net", NETS)
def test_equal_to_the_bit(net: str, share: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "randn", partial(torch.randn, dtype=torch.double if net == "double" else None))
    with one_thread():
        model, step = NETS[net]()
        expected = [*(step() for _ in range(WARM_UP + 3)), *model.state_dict().values()]
        limit = demand_of(NETS[net]) // share
        model, step = NETS[net]()
        with torch_lms.session(limit=limit, min_size=MIN_SIZE) as lms:
            results = [step() for _ in range(WARM_UP + 3)]
            lms.validate()
            stats = lms.stats()
    assert same_bits([*results, *model.state_dict().values()], expected)
    if share == 2:  # at the tight end there is no room for what it takes
        assert stats.recomputed_bytes > 0
        assert stats.recomputes > 0


@pytest.mark.parametrize("net", ["the demo's U-Net, 64^3", "ResNet-50, 1 x 384^2", "DeepLab over ResNet-18, 1 x 385^2"])
def test_less_leaves_than_any_schedule_must_move(net: str) -> None:
    with one_thread():
        traffic = measure(LARGE[net], demand_of(LARGE[net]) // 2, recompute=True)
    assert traffic.stats.planned_steps == STEPS
    assert traffic.ratio < 0.7


@pytest.mark.parametrize("share", [2, 4])
@pytest.mark.parametrize("net", ["the demo's U-Net", "3D U-Net, 4 micro-batches", "encoder with Adam"])
def test_less_leaves_than_without(net: str, share: int) -> None:
    """Less than any schedule must move that recomputes nothing."""
    limit = demand_of(NETS[net]) // share
    _, step = NETS[net]()
    with one_thread(), torch_lms.session(limit=limit, min_size=MIN_SIZE) as lms:
        for _ in range(WARM_UP):
            step()
        lms.reset_stats()
        for _ in range(STEPS):
            step()
        stats, trace = lms.stats(), lms.trace()
    assert stats.planned_steps == STEPS
    assert stats.evicted_bytes < 0.85 * STEPS * floor_bytes(trace, limit)
    assert stats.peak_resident_bytes <= limit + trace.working_set_bytes


def test_not_if_it_is_not_wanted() -> None:
    limit = demand_of(NETS["convolutions"]) // 2
    _, step = NETS["convolutions"]()
    with torch_lms.session(limit=limit, min_size=MIN_SIZE, recompute=False) as lms:
        for _ in range(WARM_UP + 2):
            step()
        stats = lms.stats()
    assert stats.planned_steps >= 2
    assert stats.recomputes == 0


# ---- what befalls the pages from which others are made, between forward and backward


class Scene:
    """What a disturbance finds: the model, the batch, what the first layer gave, the loss."""

    def __init__(self, model: Convolutions, x: Tensor) -> None:
        self.model, self.x = model, x
        self.kept = model.first(x)
        out = F.silu(self.kept * 2)
        self.seen = [out]
        for block in model.body:
            out = out + block(out)
            self.seen.append(out)
        self.loss = model.last(F.max_pool2d(out, 4).flatten(1)).square().mean()


def write_a_weight(scene: Scene) -> None:
    for block in scene.model.body:
        block[0].weight.data.mul_(1.01)


def write_a_weight_through_numpy(scene: Scene) -> None:
    scene.model.body[2][0].weight.detach().numpy()[:] *= 1.01


def write_statistics(scene: Scene) -> None:
    for block in scene.model.body:
        block[1].running_mean.data.zero_()
        block[1].running_var.data.fill_(2)


def write_what_others_are_made_from(scene: Scene) -> None:
    for tensor in scene.seen:
        tensor.data.add_(0.5)


def write_the_batch(scene: Scene) -> None:
    scene.x.data.neg_()


def read_all(scene: Scene) -> None:
    scene.x.data += sum(tensor.detach().sum() for tensor in scene.seen) * 1e-6


def take_addresses(scene: Scene) -> None:
    for tensor in (scene.kept, *scene.seen):
        tensor.detach().numpy()[0] += 1


def save_all(scene: Scene) -> None:
    file = io.BytesIO()
    torch.save([tensor.detach() for tensor in scene.seen], file)
    file.seek(0)
    scene.x.data += sum(tensor.sum() for tensor in torch.load(file)) * 1e-6


def let_go(scene: Scene) -> None:
    scene.seen.clear()
    del scene.x, scene.kept


def use_other_threads(_: Scene) -> None:
    torch.set_num_threads(3 - torch.get_num_threads())


def use_deterministic_algorithms(_: Scene) -> None:
    torch.use_deterministic_algorithms(not torch.are_deterministic_algorithms_enabled())


def compile_with_it(scene: Scene) -> None:
    for tensor in scene.seen:
        torch.compile(lambda t: t.mul_(1.5), backend="inductor")(tensor.data)


def evict_all(_: Scene) -> None:
    if torch_lms.is_enabled():
        torch_lms.reclaim()


def fail(_: Scene) -> None:
    raise ZeroDivisionError


DISTURBANCES = [
    write_a_weight,
    write_a_weight_through_numpy,
    write_statistics,
    write_what_others_are_made_from,
    write_the_batch,
    read_all,
    take_addresses,
    save_all,
    let_go,
    use_other_threads,
    use_deterministic_algorithms,
    compile_with_it,
    evict_all,
    fail,
]


def disturbed(disturb: Callable[[Scene], None], noted: Callable[[], None] = lambda: None) -> list[Tensor]:
    """Twelve steps, the eighth and eleventh of them disturbed."""
    torch.manual_seed(0)
    model = Convolutions()
    update = SGD(model.parameters())
    results = []
    for number in range(12):
        update.zero_grad()
        scene = Scene(model, torch.randn(8, 3, 32, 32))
        if number in (7, 10):
            noted()
            try:
                disturb(scene)
            except ZeroDivisionError:
                continue
            finally:
                noted()
        scene.loss.backward()
        update.step()
        results.append(scene.loss.detach())
        results += [tensor.detach().sum() for tensor in scene.seen]
    return [*results, *model.state_dict().values()]


@pytest.mark.parametrize("disturb", DISTURBANCES)
def test_nothing_is_lost_that_is_dropped(disturb: Callable[[Scene], None]) -> None:
    threads = torch.get_num_threads()
    try:
        expected = disturbed(disturb)
        made: list[int] = []
        with torch_lms.session(limit=3_000_000, min_size=1024) as lms:
            results = disturbed(disturb, lambda: made.append(lms.stats().recomputed_bytes))
            lms.validate()
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(False)
    assert same_bits(results, expected)
    assert made[2] > made[0] > 0, "nothing was dropped that had to be recomputed"
    if disturb in (write_a_weight, write_what_others_are_made_from, take_addresses):
        assert made[1] > made[0], "nothing was dropped when it mattered"


def test_a_page_emptied_by_hand() -> None:
    """Whatever was to be made from it is made before."""

    def program() -> list[Tensor]:
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(64, 64))
        update = SGD([weight])
        results = []
        for number in range(10):
            x = torch.randn(512, 64)
            y = x * 2
            z = [torch.relu(y @ weight) for _ in range(4)]
            if number == 8:
                x.untyped_storage().resize_(0)
            loss = sum(part.square().mean() for part in z)
            loss.backward()
            update.step()
            results.append(loss.detach())
            del x
        return [*results, weight.detach()]

    expected = program()
    with torch_lms.session(limit=900_000, min_size=1024) as lms:
        results = program()
        assert lms.stats().recomputes > 0
    assert same_bits(results, expected)


def test_in_inference_too() -> None:
    torch.manual_seed(0)
    model, x = Convolutions().eval(), torch.randn(8, 3, 32, 32)
    with torch.no_grad():
        expected = model(x)
        with torch_lms.session(limit=500_000, min_size=1024) as lms:
            results = [model(x) for _ in range(6)]
            assert lms.stats().planned_steps > 0
    assert all(same_bits([result], [expected]) for result in results)


def test_what_is_kept_and_never_used_again_is_not_moved() -> None:
    """And it is there if somebody uses it all the same."""

    def step() -> list[Tensor]:
        kept = []
        for number in range(8):
            kept.append(torch.full((1 << 18,), number / 3).sin())
        return kept

    expected = step()
    with torch_lms.session(limit=6 << 20, min_size=1 << 16) as lms:
        for _ in range(WARM_UP):
            step()
            torch_lms.step()
        lms.reset_stats()
        for _ in range(3):
            step()
            torch_lms.step()
        stats = lms.stats()
        assert stats.planned_steps == 3
        assert stats.evicted_bytes == stats.recomputes == 0
        found = [tensor.clone() for tensor in step()]
        assert lms.stats().recomputes > 0
        lms.validate()
    assert same_bits(found, expected)


def test_precision_that_is_set_by_backend() -> None:
    """PyTorch's older functions raise where backends differ."""
    matmul, net = torch.backends.cuda.matmul, NETS["encoder with Adam"]
    limit, before = demand_of(net) // 2, matmul.fp32_precision
    matmul.fp32_precision = "tf32"
    try:
        with pytest.raises(RuntimeError):
            torch.get_float32_matmul_precision()
        with one_thread(), torch_lms.session(limit=limit, min_size=MIN_SIZE) as lms:
            _, step = net()
            for _ in range(WARM_UP + 3):
                step()
            assert lms.stats().recomputes > 0
    finally:
        matmul.fp32_precision = before


class Repeated:
    """A call that makes ``made`` from ``used``; notes what is there when it runs."""

    def __init__(self, used: list[int], made: int) -> None:
        self.pages = [SimpleNamespace(page=page) for page in used]
        self.results = [(0, SimpleNamespace(entry=SimpleNamespace(page=made)))]
        self.there: set[int] = set()

    def repeat(self, storages: dict[int, Any]) -> None:
        self.there = set(storages)
        storages[self.results[0][1].entry.page] = object()


def test_what_is_made_on_the_way_is_freed_after_its_last_use() -> None:
    calls: list[Any] = [Repeated([0], 1), Repeated([1], 2), Repeated([1, 2], 3), Repeated([3], 4), Repeated([4], 5)]
    storages: dict[int, Any] = {0: object()}
    program = _Program(4, calls, [], storages)
    program.run()
    assert [call.there - {0} for call in calls] == [set(), {1}, {1, 2}, {3}, {4}]
    assert set(storages) == {0}
