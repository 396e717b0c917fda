"""What a session promises beside equal numbers: its beginning and end, threads, forks, memory that runs out."""

import gc
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset
from torch.utils.flop_counter import FlopCounterMode

import torch_lms
from torch_lms.errors import SessionError, StoreFullError, UsageError
from torch_lms.policy import Planned
from torch_lms.runtime import api, backend, session
from torch_lms.runtime.limits import AutoLimit
from torch_lms.stores.spill_file import SpillFile

_nbytes = torch._C.StorageBase.nbytes


def run_script(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``text`` as a script of its own."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text), *arguments], capture_output=True, text=True, timeout=240
    )


# -- beginning and end -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"limit": "12 parsecs"}, "limit must be bytes as an int"),
        ({"limit": "12XB"}, "limit must be bytes as an int"),
        ({"limit": -1}, "must not be negative"),
        ({"limit": "120%"}, "at most 100%"),
        ({"limit": 10**30}, "more than any device has"),
        ({"limit": 1.5}, "limit must be bytes as an int"),
        ({"limit": True}, "limit must be bytes as an int"),
        ({"min_size": "80%"}, "min_size takes no percentage"),
        ({"min_size": -5}, "must not be negative"),
        ({"host_limit": "much"}, "host_limit must be bytes"),
        ({"spill_dir": "/no/such/directory"}, "/no/such/directory"),
        ({"spill_dir": __file__}, "not a directory"),
        ({"spill_dir": "/proc"}, "takes no files, or give another"),
        ({"spill_dir": ""}, "spill_dir must be a directory; got ''"),
        ({"spill_dir": 5}, "spill_dir must be a directory; got 5"),
        ({"device": None}, "device must be .*got None"),
        ({"policy": "clever"}, "policy must be one of"),
        ({"recompute": "yes"}, "recompute must be True or False"),
        ({"device": "abacus"}, "device must be"),
        ({"device": "xpu"}, "no 'xpu' device"),
    ],
)
def test_bad_arguments(options: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match="(?s)" + words):
        torch_lms.enable(**options)  # type: ignore[arg-type]
    assert not torch_lms.is_enabled()


def test_enabling_twice_and_disabling_when_off() -> None:
    for call in (torch_lms.disable, torch_lms.step, torch_lms.reclaim, torch_lms.attach, torch_lms.reset_stats):
        with pytest.raises(SessionError, match="LMS is off"):
            call()
    with pytest.raises(SessionError, match="LMS is off"):
        torch_lms.pinned(torch.ones(1))
    torch_lms.enable()
    torch_lms.enable()
    with pytest.raises(SessionError, match="on already"), torch_lms.session():
        pass
    assert torch_lms.is_enabled()
    torch_lms.disable()
    assert not torch_lms.is_enabled()


def test_enabling_again_changes_limit_and_min_size() -> None:
    """As a cell of a notebook does that is run twice."""
    torch_lms.enable("1GB", min_size=1024)
    kept = [torch.ones(1 << 20) for _ in range(8)]
    torch_lms.enable("16MiB", min_size=2048)
    stats = torch_lms.stats()
    assert stats.limit_bytes == 16 << 20
    assert stats.resident_bytes <= 16 << 20
    refused: list[tuple[dict[str, Any], str]] = [
        (
            {"limit": "16MiB", "policy": "reactive", "recompute": False},
            "with policy='planned', recompute=True, and cannot change to policy='reactive', recompute=False:",
        ),
        ({"min_size": 2048}, "with limit='16MiB', and cannot change to limit='auto':"),
    ]
    for options, words in refused:
        with pytest.raises(SessionError, match=re.escape(words)):
            torch_lms.enable(**options)
        assert torch_lms.stats().limit_bytes == 16 << 20
    assert all(bool((page == 1).all()) for page in kept)
    torch_lms.disable()


def test_a_session_may_be_entered_time_and_again() -> None:
    paged = torch_lms.session(limit=0, min_size=1024, device="cpu")
    for number in range(2):
        with paged as lms:
            kept = torch.full((10_000,), float(number))
            torch_lms.reclaim()
            assert kept.sum() == 10_000 * number
            assert lms.stats().evictions > 0
            with pytest.raises(SessionError, match="one session"), paged:
                pass
        assert not torch_lms.is_enabled()


def test_a_function_may_be_a_session() -> None:
    @torch_lms.session(limit=0, min_size=1024, device="cpu")
    def total(number: float) -> float:
        assert torch_lms.is_enabled()
        kept = torch.full((10_000,), number)
        torch_lms.reclaim()
        return float(kept.sum())

    assert [total(1.0), total(2.0)] == [10_000, 20_000]
    assert not torch_lms.is_enabled()


def test_our_mode_among_others() -> None:
    with FlopCounterMode(display=False):
        with pytest.raises(SessionError, match="FlopCounterMode"):
            torch_lms.enable()
        with torch_lms.session(limit=0, min_size=1):
            assert (torch.ones(64, 64) @ torch.ones(64, 64)).sum() == 64**3
    torch_lms.enable(limit=0, min_size=1)
    with FlopCounterMode(display=False) as flops:
        product = torch.ones(64, 64) @ torch.ones(64, 64)
        torch_lms.disable()
        assert torch.equal(product, torch.full((64, 64), 64.0))
        _ = product @ product
    assert flops.get_total_flops() == 2 * 2 * 64**3
    assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == []


def test_statistics_stay_after_the_end_and_read_well() -> None:
    with torch_lms.session(limit=0, min_size=1) as lms:
        _ = torch.ones(1000) + torch.ones(1000)
        lms.step()
    stats = torch_lms.stats()
    assert stats.steps == 1
    assert stats.policy == "reactive"
    assert stats.evicted_bytes > 0
    assert "1 steps" in str(stats)
    assert stats.as_dict()["evicted_bytes"] == stats.evicted_bytes


def test_reset_stats() -> None:
    with torch_lms.session(limit=0, min_size=1) as lms:
        kept = torch.ones(1000) + torch.ones(1000)
        lms.reset_stats()
        assert lms.stats().evicted_bytes == 0
        assert lms.stats().disk_bytes == kept.nbytes


def test_nothing_moves_while_everything_fits() -> None:
    with torch_lms.session() as lms:
        model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(512, 512)).sum().backward()
            optimizer.step()
        stats = lms.stats()
    assert (stats.evicted_bytes, stats.fetched_bytes, stats.stall_s) == (0, 0, 0)
    assert stats.steps == 3
    assert stats.demand_bytes > 0


def test_demand_is_what_lives_at_once() -> None:
    with torch_lms.session(limit="64GB", min_size=1) as lms:
        a = torch.ones(1000)
        b = a + 1
        c = b + 1
        del b
        _ = a + c
        lms.step()
        assert lms.stats().demand_bytes == 3 * 4000


@pytest.mark.usefixtures("_each_interposer")
def test_pages_are_only_counted_until_some_have_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where limit="auto" shrinks between two steps: then each is known before any is chosen."""
    free = 64 << 20
    monkeypatch.setattr(session, "STEPS_ASK_EVERY_S", 0.0)
    monkeypatch.setattr(backend, "auto_limit", lambda *_: AutoLimit(free, "a test says so", 64 << 20))
    with torch_lms.session(min_size=1024, device="cpu") as lms:
        kept = [torch.full((1 << 18,), float(number)) for number in range(5)]
        del kept[0]
        lms.step()
        book = api.current_session()._default.engine.pager.book
        assert (book.ledger.device, book.ledger.live, len(book)) == (4 << 20, 4 << 20, 0)
        assert lms.stats().demand_bytes == 5 << 20
        kept.append(kept[0] + kept[1])
        del kept[1]
        lms.step()
        assert (book.ledger.device, book.ledger.peak_live, len(book)) == (4 << 20, 4 << 20, 3)
        free = -(2 << 20)
        lms.step()
        assert (book.ledger.device, book.ledger.live, len(book)) == (2 << 20, 4 << 20, 4)
        assert [page[-1].item() for page in kept] == [1, 3, 4, 3]


def test_pages_die_without_the_garbage_collector() -> None:
    gc.disable()
    try:
        with torch_lms.session(limit=0, min_size=1) as lms:
            for _ in range(5):
                x = torch.ones(10_000, requires_grad=True)
                (x * 2).exp().sum().backward()
                del x
            torch.ones(1)
            assert lms.stats().resident_bytes + lms.stats().disk_bytes <= 4
    finally:
        gc.enable()


def test_a_spill_directory_of_ones_own(tmp_path: Path) -> None:
    with torch_lms.session(limit=0, min_size=1, spill_dir=tmp_path):
        kept = torch.arange(100_000)
        torch_lms.reclaim()
        assert list(tmp_path.iterdir()) == []  # the file has no name
        assert kept.sum() == 100_000 * 99_999 // 2


def test_enabled_until_the_interpreter_ends() -> None:
    done = run_script("""
        import torch, torch_lms
        torch_lms.enable(limit=0, min_size=1)
        kept = torch.ones(100_000) + 1
        print(kept.sum().item())
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "200000.0\n", "")


# -- the disk ----------------------------------------------------------------------------------------------------------


def test_a_disk_that_was_full_at_first_takes_pages_once_it_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    free = [0]
    monkeypatch.setattr(SpillFile, "free_bytes", lambda _: free[0])
    with torch_lms.session(limit="16kB", min_size="1kB", device="cpu") as lms:
        kept = [torch.full((1000,), float(number)) for number in range(4)]
        with pytest.raises(StoreFullError, match="Nothing is lost"):
            kept.append(kept[0] + kept[1])
        free[0] = 1 << 30
        time.sleep(0.01)
        kept.append(kept[0] + kept[1])
        assert lms.stats().disk_bytes == 4000
    assert [float(tensor[0]) for tensor in kept] == [0, 1, 2, 3, 1]


# -- the limit ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fill", [torch.Tensor.bernoulli_, torch.Tensor.zero_], ids=["bernoulli", "zero"])
def test_room_for_what_becomes_a_page_when_it_is_filled(fill: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A small empty tensor is no page before its first operation (N12)."""
    with torch_lms.session(limit="256KiB", min_size="4KiB"):
        full = [torch.ones(16 << 10) for _ in range(4)]
        fill(torch.empty(8 << 10))
        stats = torch_lms.stats()
        assert stats.evicted_bytes == full[0].nbytes
        assert stats.peak_resident_bytes == stats.limit_bytes
        alone = torch.empty(128 << 10)
        assert torch_lms.stats().peak_resident_bytes == alone.nbytes


def test_room_for_memory_that_comes_from_elsewhere() -> None:
    """As batches do that a loader's worker made: its bytes are there before anything can leave for them."""
    given = torch.ones(8 << 10).untyped_storage()
    with torch_lms.session(limit="256KiB", min_size="4KiB"):
        full = [torch.ones(16 << 10) for _ in range(4)]
        batch = torch.empty(0).set_(given)
        assert (batch + 1).eq(2).all()
        stats = torch_lms.stats()
        assert stats.evicted_bytes >= full[0].nbytes
        assert stats.peak_resident_bytes == stats.limit_bytes


# -- steps -------------------------------------------------------------------------------------------------------------


def test_steps_are_found_in_training_and_inference() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch_lms.session(min_size=1) as lms:
        for _ in range(3):
            model(torch.ones(1, 8)).sum().backward()
            optimizer.step()
        assert lms.stats().steps == 3
        with torch.no_grad():
            model(torch.ones(1, 8))
        assert lms.stats().steps == 4
        lms.step()
        assert lms.stats().steps == 5


@pytest.mark.parametrize("tells", [False, True])
def test_layers_that_no_module_holds_together_make_one_step_of_each_pass(tells: bool) -> None:
    """But for the first, which might have been a whole model."""
    layers, model = [nn.Linear(8, 8) for _ in range(4)], nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with torch_lms.session(min_size=1) as lms, torch.no_grad():
        for _ in range(5):
            x = torch.ones(1, 8)
            for layer in layers:
                x = layer(x)
            if tells:
                lms.step()
        before = lms.stats().steps
        assert before == (6 if tells else 5)
        for _ in range(5):
            model(x)
        assert 4 <= lms.stats().steps - before <= 5


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoints_of_a_loop_are_no_steps(use_reentrant: bool) -> None:
    blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])
    optimizer = torch.optim.SGD(blocks.parameters(), lr=0.1)
    with torch_lms.session(min_size=1) as lms:
        for _ in range(3):
            x = torch.ones(1, 8, requires_grad=True)
            for block in blocks:
                x = checkpoint(block, x, use_reentrant=use_reentrant)
            x.sum().backward()
            optimizer.step()
        assert lms.stats().steps == 3


def _updated_in_backward(steps: int) -> list[torch.Tensor]:
    """The losses of a training in which each weight is updated, and its gradient let go of, once that is known."""
    torch.manual_seed(0)
    model = nn.Sequential(*(part for _ in range(6) for part in (nn.Linear(64, 64), nn.Tanh())))
    updates = {weight: torch.optim.Adam([weight], lr=0.01) for weight in model.parameters()}

    def update(weight: torch.Tensor) -> None:
        updates[weight].step()
        updates[weight].zero_grad()

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(update)
    losses = []
    for _ in range(steps):
        loss = model(torch.ones(64, 64)).square().mean()
        loss.backward()
        losses.append(loss.detach())
    return losses


def test_optimizers_that_step_in_a_backward_pass_make_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_LMS_PLANNING", "at-once")
    with torch_lms.session(limit="1GB", min_size=1024) as lms:
        expected = _updated_in_backward(8)
        stats = lms.stats()
    assert stats.steps == 8
    with torch_lms.session(limit=stats.demand_bytes // 2, min_size=1024) as lms:
        found = _updated_in_backward(8)
        planned_steps = lms.stats().planned_steps
    assert found == expected
    assert planned_steps >= 4


# -- threads and forks -------------------------------------------------------------------------------------------------


def test_threads_started_during_a_session_take_part() -> None:
    with torch_lms.session(limit=0, min_size=1) as lms:
        kept = torch.arange(10_000.0)
        torch_lms.reclaim()
        with ThreadPoolExecutor(4) as pool:
            sums = list(pool.map(lambda k: (kept * k).sum().item(), range(8)))
        assert sums == [(kept * k).sum().item() for k in range(8)]
        lms.validate()


@torch.library.custom_op("torch_lms_tests::wait_for", mutates_args=())
def _wait_for(x: torch.Tensor, name: str) -> torch.Tensor:
    began, go = _events[name]
    began.set()
    assert go.wait(60)
    return x * 2


_events: dict[str, tuple[threading.Event, threading.Event]] = {}


def test_an_operation_that_runs_while_the_fast_path_closes_keeps_its_pages() -> None:
    """It began without pinning anything, because everything fitted; then another thread evicts."""
    _events["fast"] = began, go = threading.Event(), threading.Event()
    results: list[torch.Tensor] = []
    with torch_lms.session(limit="1GB", min_size=1) as lms:
        used, idle = torch.ones(10_000), torch.ones(10_000)
        thread = threading.Thread(target=lambda: results.append(_wait_for(used, "fast")))
        thread.start()
        assert began.wait(60)
        torch_lms.step()  # closes the fast path, and opens it again
        torch_lms.step()
        torch_lms.reclaim()
        assert _nbytes(used.untyped_storage()) == 40_000
        assert _nbytes(idle.untyped_storage()) == 0
        go.set()
        thread.join()
        torch_lms.reclaim()
        assert _nbytes(used.untyped_storage()) == 0
        assert results[0].sum() == 20_000
        assert idle.sum() == 10_000
        lms.validate()


def test_an_older_thread_joins_by_attach(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="torch_lms")
    go, done, seen = threading.Event(), threading.Event(), []

    def work() -> None:
        go.wait()
        torch_lms.attach()
        seen.append((kept * 2).sum().item())
        done.set()

    thread = threading.Thread(target=work, name="early")
    thread.start()
    with torch_lms.session(limit=0, min_size=1):
        assert re.search(r"attach\(\): .*early", caplog.text)
        kept = torch.ones(10_000)
        torch_lms.reclaim()
        go.set()
        assert done.wait(60)
    thread.join()
    assert seen == [20_000.0]


class _Rows(Dataset[torch.Tensor]):
    def __init__(self) -> None:
        self.table = torch.arange(64 * 4096, dtype=torch.float32).view(64, 4096)

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.table[index] * 2


def test_forked_loader_workers_inside_a_session() -> None:
    expected = _Rows().table * 2
    model = nn.Linear(4096, 8)
    with torch_lms.session(limit="4MiB", min_size="64KiB") as lms:
        rows = _Rows()
        others = [torch.ones(1 << 18) for _ in range(8)]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        loader = DataLoader(rows, batch_size=16, num_workers=2, multiprocessing_context="fork")
        for _ in range(2):
            batches = []
            for batch in loader:
                model(batch).sum().backward()
                optimizer.step()
                batches.append(batch)
            assert torch.equal(torch.cat(batches), expected)
        assert all(other.sum() == 1 << 18 for other in others)
        assert lms.stats().evicted_bytes > 0
        lms.validate()


def test_a_forked_child_is_told_what_it_must_not_touch() -> None:
    done = run_script("""
        import os, torch, torch_lms
        torch_lms.enable(limit=0, min_size=1)
        gone = torch.ones(100_000)
        torch_lms.reclaim()
        from torch_lms.runtime import forks, limits
        forks.auto_limit = lambda device: limits.AutoLimit(0, "a test says so", 0)
        pid = os.fork()
        if pid == 0:
            assert not torch_lms.is_enabled()
            assert (torch.ones(1000) * 2).sum() == 2000
            try:
                gone.sum()
            except torch_lms.LmsError as error:
                os._exit(7 if type(error).__name__ == "ForkedPageError" else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert gone.sum() == 100_000
        torch_lms.disable()
    """)
    assert done.returncode == 0, done.stderr


def test_a_block_that_nobody_left_does_not_keep_the_program_from_ending() -> None:
    done = run_script("""
        from contextlib import ExitStack
        import torch, torch_lms
        stack = ExitStack()
        stack.enter_context(torch_lms.session(limit=0, min_size=1, device="cpu"))
        gone = torch.ones(100_000)
        torch_lms.reclaim()
        assert torch_lms.stats().evicted_bytes
        raise SystemExit("the program failed")
    """)
    assert (done.returncode, done.stderr) == (1, "the program failed\n")


FAILED_IN_ONEDNN = """
    import resource, sys
    import torch, torch_lms
    from torch_lms.runtime import api
    with torch_lms.session(device="cpu"):
        executor = api._running._session._table.backends[0].executor
        if sys.argv[1] == "limited":
            resource.setrlimit(resource.RLIMIT_DATA, (1 << 40, resource.RLIM_INFINITY))
        print(*(executor.is_out_of_memory(RuntimeError(words)) for words in sys.argv[2:]))
"""


@pytest.mark.parametrize(("case", "told"), [("limited", "True True False"), ("unlimited", "False False False")])
def test_what_fails_in_onednn_has_run_out_of_memory_where_that_is_refused(case: str, told: str) -> None:
    words = ("could not create a primitive", "could not execute a primitive", "could not create a primitive descriptor")
    assert run_script(FAILED_IN_ONEDNN, case, *words).stdout.strip() == told


def test_a_child_may_have_a_session_of_its_own() -> None:
    done = run_script("""
        import os, torch, torch_lms
        torch.set_num_threads(1)  # a forked child must not use the parent's OpenMP threads
        torch_lms.enable(limit="1GB", min_size=1)
        kept = torch.ones(100_000)
        pid = os.fork()
        if pid == 0:
            with torch_lms.session(limit=0, min_size=1) as lms:
                assert (kept + 1).sum() == 200_000
                assert lms.stats().evicted_bytes > 0
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert kept.sum() == 100_000
    """)
    assert done.returncode == 0, done.stderr


# -- memory that runs out ----------------------------------------------------------------------------------------------


def test_no_room_below_is_an_error_that_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_lms.stores.disk import DiskStore

    monkeypatch.setattr(api, "DiskStore", lambda directory: DiskStore(directory, capacity=100 << 10))
    with torch_lms.session(limit=0, min_size=1, spill_dir=tmp_path) as lms:
        kept = [torch.full((10_000,), float(n)) for n in range(3)]
        with pytest.raises(StoreFullError, match="Nothing is lost"):
            torch.ones(10_000)
        lms.validate()
        del kept[1:]
        assert (kept[0] + 1).sum() == 10_000


UNDER_RLIMIT = """
import resource, sys, torch, torch_lms
from torch_lms.machine.memory import read_host_memory
torch.set_num_threads(2)
torch.ones(64, 64) @ torch.ones(64, 64)
used = read_host_memory().data_used
resource.setrlimit(resource.RLIMIT_DATA, (used + (700 << 20), used + (700 << 20)))
"""


def test_training_beyond_what_the_kernel_allows() -> None:
    """Stock PyTorch cannot hold it; with LMS and no limit given it runs, and counts what moved."""
    body = """
    layers = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(4)))  # 268 MB, as much again in gradients
    optimizer = torch.optim.Adam(layers.parameters())  # and 537 MB
    for _ in range(2):
        optimizer.zero_grad()
        layers(torch.ones(64, 4096)).sum().backward()
        optimizer.step()
    print("done")
    """
    body = textwrap.dedent(body)
    stock = run_script(UNDER_RLIMIT + body)
    assert stock.returncode != 0
    assert "can't allocate memory" in stock.stderr
    paged = run_script(UNDER_RLIMIT + "torch_lms.enable()\n" + body + "assert torch_lms.stats().evicted_bytes > 0")
    assert (paged.returncode, paged.stdout) == (0, "done\n"), paged.stderr


def test_what_does_not_fit_cannot_be_brought_back() -> None:
    done = run_script(
        UNDER_RLIMIT
        + """
torch_lms.enable()
kept = [torch.full((16 << 20,), float(n)) for n in range(16)]  # 1 GB
try:
    torch_lms.disable()
except torch_lms.LmsError as error:
    print(error)
assert torch_lms.is_enabled()
assert [tensor[-1].item() for tensor in kept] == list(range(16))
del kept[4:]
torch_lms.disable()
assert kept[3].sum() == 3 * (16 << 20)
"""
    )
    assert done.returncode == 0, done.stderr
    assert "LMS stays on" in done.stdout


def test_an_operation_that_cannot_fit() -> None:
    done = run_script(
        UNDER_RLIMIT
        + """
torch_lms.enable()
kept = torch.ones(10 << 20)
try:
    points = torch.ones(20_000, 2)
    torch.cdist(points, points, p=1)  # is not cut
except torch_lms.WorkingSetError as error:
    print(error)
    assert isinstance(error, RuntimeError)
assert kept.sum() == 10 << 20
torch_lms.disable()
"""
    )
    assert done.returncode == 0, done.stderr
    for words in ("cannot hold", "aten::_cdist_forward", "float32[20000, 2]", "1.6 GB of results", "smaller batch"):
        assert words in done.stdout, done.stdout


def test_an_operation_that_runs_out_of_memory_runs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that is not ours to count fails an allocation; everything else leaves, and the numbers are the same."""
    monkeypatch.setattr(Planned, "outlook", lambda *_: None)  # Python has each operation
    torch.manual_seed(0)
    expected = torch.rand(1000)
    with torch_lms.session(limit="6kB", min_size=1) as lms:
        kept = torch.ones(1000)
        torch.rand(1000)  # its size is known from now on, without another call
        torch.manual_seed(0)
        real, failures = torch.ops.aten.rand.default, [1]

        def fails_once(operator: object, *args: object, **kwargs: object) -> object:
            if failures and operator is real:
                failures.pop()
                torch.bernoulli(torch.rand(5))  # it has drawn before it failed
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
            return original(operator, *args, **kwargs)

        original = type(real).__call__
        monkeypatch.setattr(type(real), "__call__", fails_once)
        drawn = torch.rand(1000)
        monkeypatch.undo()
        assert torch.equal(drawn, expected)
        assert kept.sum() == 1000
        assert lms.stats().recoveries == 1


def test_an_error_in_an_operation_leaves_the_books_in_order() -> None:
    with torch_lms.session(limit=0, min_size=1) as lms:
        a, b = torch.ones(1000), torch.ones(999)
        with pytest.raises(RuntimeError, match="must match the size"):
            a + b
        lms.validate()
        assert (a.sum() + b.sum()).item() == 1999


def test_an_interrupt_while_settling_leaves_no_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch_lms.session(limit="3MB", min_size=1):
        session = api.current_session()
        assert session is not None
        with session.standing_still() as (backend,):
            kept, grown = torch.zeros(500_000), torch.zeros(100)

            def interrupted(entry: object) -> None:
                raise KeyboardInterrupt

            monkeypatch.setattr(backend.executor, "finish_evict", interrupted)
            with pytest.raises(KeyboardInterrupt):
                grown.resize_(400_000)
            monkeypatch.undo()
            assert {page.pins for page in backend.engine.pager.book} == {0}
            assert kept.sum() == 0


def test_lists_of_tensors_are_cut_into_runs_that_fit() -> None:
    parameters = [torch.full((1000,), float(n)) for n in range(16)]
    expected = torch._foreach_add(torch._foreach_mul(parameters, 2.0), parameters)
    with torch_lms.session(limit=20_000, min_size=1) as lms:
        held = [p.clone() for p in parameters]
        results = torch._foreach_add(torch._foreach_mul(held, 2.0), held)
        torch._foreach_add_(held, 1.0)
        assert lms.stats().peak_resident_bytes <= 20_000 + 3 * 4000
        assert all(map(torch.equal, results, expected))
        assert all(torch.equal(h, p + 1) for h, p in zip(held, parameters, strict=True))


@pytest.mark.parametrize(
    ("told", "then"),
    [
        ({}, f"1 {32 << 20} {32 << 20}"),
        ({"THP_MEM_ALLOC_ENABLE": "1"}, f"1 {32 << 20} {32 << 20}"),
        ({"THP_MEM_ALLOC_ENABLE": "0"}, "0 None None"),
        ({"MALLOC_TRIM_THRESHOLD_": "4096"}, f"1 {32 << 20} 4096"),
        ({"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"}, "1 None None"),
    ],
)
def test_huge_pages_unless_the_environment_says_otherwise(told: dict[str, str], then: str) -> None:
    names = ("THP_MEM_ALLOC_ENABLE", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
    others = {name: value for name, value in os.environ.items() if name not in {*names, "GLIBC_TUNABLES"}}
    script = f"import os, torch_lms; print(*(os.environ.get(name) for name in {names}))"
    done = subprocess.run([sys.executable, "-c", script], env={**others, **told}, capture_output=True, text=True)
    assert done.stdout.strip() == then


def test_no_file_descriptor_is_left() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with torch_lms.session(limit=0, min_size=1):
            (torch.ones(1000) + 1).sum()
    assert len(os.listdir("/proc/self/fd")) == before
