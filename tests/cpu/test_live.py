"""A view beside the program that it is of: in a terminal, without one, and of a training from the command line."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from live_rig import LMS, OPTIONS, TRAINING, Terminal, in_terminal
from torch import nn

import torch_lms
from torch_lms.cli.main import main
from torch_lms.runtime.api import Lms

pytest.importorskip("pyte", reason="pyte, a terminal in Python, is not installed")


def test_the_script_writes_above_the_view_and_the_terminal_is_as_before_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    terminal = Terminal()
    with in_terminal([*LMS, "run", "--live", *OPTIONS, "train.py", "end", "slowly"], tmp_path, terminal) as process:
        terminal.until(lambda rows: any(row.startswith("step 6:") for row in rows))
        rows = terminal.until(is_drawn_after_a_step)
        (title,) = [number for number, row in enumerate(rows) if "LMS of process" in row]
        assert all(number < title for number, row in enumerate(rows) if re.match(r"step \d+:", row))
        assert any(re.match(r"step \d+:", row) for row in rows)
        below = "\n".join(rows[title:])
        assert f"process {process.pid} (" in below
        assert re.search(r"^device +[█░]{20}  .* of 10 MB \(at most .*, without LMS .*\)$", below, re.MULTILINE), below
        assert re.search(r"^disk +[█░]{20}  ", below, re.MULTILINE), below
        assert re.search(r"^waits +.* in all; \d+% of the copies' time is hidden$", below, re.MULTILINE), below
        assert re.search(r"^largest +(\d+ x )?1.05 MB ", below, re.MULTILINE), below
        terminal.until(lambda rows: any(re.search(r"^moves +out .*/s, in .*/s", row) for row in rows))
        terminal.resize(24, 70)
        terminal.until(lambda rows: any("LMS of process" in row for row in rows[-13:]))
        (tmp_path / "end").touch()
    assert process.returncode == 0
    rows = terminal.rows
    assert sum("LMS" in row for row in rows) == 1, "\n".join(rows)
    assert any(re.match(r"LMS: \d+ steps, .* a step: out .*, in .*, waited", row) for row in rows), "\n".join(rows)
    assert "\x1b[r" in terminal.text.rsplit("LMS: ", 1)[0]
    terminal.close()


def is_drawn_after_a_step(rows: list[str]) -> bool:
    return any("without LMS" in row for row in rows) and any(row.startswith("largest") for row in rows)


def test_the_bits_and_the_output_are_those_without_a_view(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    (tmp_path / "end").touch()
    ways = ([sys.executable], [*LMS, "run", "--live", *OPTIONS])
    plain, live = (
        subprocess.run([*way, "train.py", "end"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        for way in ways
    )
    assert plain.stdout == live.stdout
    rows = live.stderr.splitlines()
    assert all(re.match(r"LMS: \d steps.*: out .*, limit 10 MB$", row) for row in rows), live.stderr
    assert rows[-1].startswith("LMS: 6 steps, ")


def test_steps_follow_their_plan_while_they_are_looked_at() -> None:
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(12)))
    optimizer = torch.optim.Adam(model.parameters())
    with torch_lms.session(limit="4MB", min_size="64KiB", device="cpu") as lms:
        step(model, optimizer, 4)
        before = lms.stats()
        has_ended = threading.Event()
        looking = threading.Thread(target=look, args=(lms, has_ended))
        looking.start()
        step(model, optimizer, 12)
        has_ended.set()
        looking.join()
        after = lms.stats()
    assert before.planned_steps > 0
    assert after.planned_steps - before.planned_steps == 12
    assert after.diverged_steps == before.diverged_steps


def step(model: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
    for _ in range(count):
        model(torch.ones(32, 256)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def look(lms: Lms, has_ended: threading.Event) -> None:
    while not has_ended.wait(0.001):
        reading = lms.reading()
        assert reading is not None
        assert reading.resident_bytes > 0


def test_what_it_costs_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import live

    monkeypatch.setattr("sys.argv", ["live.py", "--every", "0.05", "--rounds", "2", "--steps", "1"])
    live.main()
    assert re.search(r"^takes the processor \d\.\d+ times as long as without", capsys.readouterr().out, re.MULTILINE)


def test_a_launcher_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "torchrun").write_text("")
    command = [*LMS, "run", "--live", "torchrun", "x.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert "--live shows one process" in ended.stderr


def test_a_script_that_never_imports_torch_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text("print('hello')")
    command = [*LMS, "run", "--live", "hello.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "hello\n", "")


def test_whoever_reads_the_lines_may_leave(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    (tmp_path / "end").touch()
    reads, writes = os.pipe()
    os.close(reads)
    command = [*LMS, "run", "--live", *OPTIONS, "train.py", "end"]
    ended = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=writes, text=True, timeout=120)
    os.close(writes)
    assert ended.returncode == 0
    assert ended.stdout.count("step") == 6


def trained(capfd: pytest.CaptureFixture[str], *options: str) -> tuple[object, str, str]:
    """The exit code of ``torch-lms train`` with these options, what it said, and its errors."""
    pytest.importorskip("monai", reason="monai is not installed")
    network = ["unet3d", "--data", "synthetic", "--size", "32", "--batch", "1", "--set", "channels=4", "--steps", "2"]
    with pytest.raises(SystemExit) as ended:
        main(["train", *network, "--limit", "4MB", "--live", *options])
    return ended.value.code, *capfd.readouterr()


def test_train(capfd: pytest.CaptureFixture[str]) -> None:
    code, said, errors = trained(capfd)
    assert not code, errors
    assert "step 2/2" in said
    assert "LMS:" not in said
    assert re.search(r"^LMS: \d+ steps, .* limit 4 MB$", errors, re.MULTILINE), errors


def test_train_without_lms_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    code, _, errors = trained(capfd, "--no-lms")
    assert code == 2
    assert "--live shows what LMS does: omit --no-lms" in errors
