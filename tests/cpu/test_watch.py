"""``torch-lms watch`` of a training that runs, and of all that cannot be watched."""

import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_rig import LMS, PATIENCE_S, Terminal, in_terminal, watch, watched

import torch_lms
from torch_lms.errors import UsageError
from torch_lms.live import Server, readings_of
from torch_lms.live.sockets import folder, socket_of

NOBODY = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for another user")


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The number of a process that trains."""
    with watched(tmp_path_factory.mktemp("training")) as process:
        yield process.pid


def test_for_programs(training: int, tmp_path: Path) -> None:
    ended = watch(str(training), "--count", "2", "--json", "-")
    assert ended.returncode == 0, ended.stderr
    first, second = map(json.loads, ended.stdout.splitlines())
    assert first["pid"] == training
    assert 6 <= first["steps"] <= second["steps"]
    assert second["limit_bytes"] == 10_000_000
    assert second["evicted_bytes"] > 0
    assert second["disk_bytes"] > 0
    assert second["pages"][0]["nbytes"] == 512 * 512 * 4
    assert second["time_s"] - first["time_s"] > 0.5
    file = tmp_path / "readings.jsonl"
    assert watch(str(training), "--count", "1", "--json", str(file)).stdout == ""
    assert json.loads(file.read_text())["steps"] >= second["steps"]


def test_for_people(training: int) -> None:
    rows = watch(str(training), "--count", "2").stdout.splitlines()
    assert len(rows) == 2
    assert all(re.match(r"LMS: \d+ steps, .* a step: out .*, limit 10 MB$", row) for row in rows), rows


def test_in_a_terminal(training: int, tmp_path: Path) -> None:
    pytest.importorskip("pyte", reason="pyte, a terminal in Python, is not installed")
    terminal = Terminal()
    with in_terminal([*LMS, "watch", str(training), "--count", "3"], tmp_path, terminal) as watcher:
        terminal.until(lambda rows: any(re.match(r"moves +out ", row) for row in rows))
    assert watcher.returncode == 0
    assert sum(f"LMS of process {training} (" in row for row in terminal.rows) == 1, "\n".join(terminal.rows)
    terminal.close()


def test_it_ends_with_the_session(tmp_path: Path) -> None:
    with watched(tmp_path) as process:
        command = [*LMS, "watch", str(process.pid), "--json", "-"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watcher:
            assert watcher.stdout is not None
            assert watcher.stdout.readline()
            (tmp_path / "end").touch()
            watcher.communicate(timeout=PATIENCE_S)
    assert watcher.returncode == 0
    assert not socket_of(process.pid).exists()


def test_a_value_that_makes_no_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_LMS_WATCH", "yes")
    with pytest.raises(UsageError, match=r"TORCH_LMS_WATCH must be 1, to let .* watch, or 0; got 'yes'"):
        torch_lms.enable(device="cpu")
    assert not torch_lms.is_enabled()


def refused(pid: object) -> str:
    ended = watch(str(pid))
    assert ended.returncode == 2
    assert ended.stdout == ""
    return ended.stderr


def test_what_is_no_process() -> None:
    assert "there is no process 4194400" in refused(4194400)
    assert "'x' is not a valid integer" in refused("x")
    assert "0 is not in the range" in refused(0)


def test_a_process_without_lms_and_one_that_did_not_ask() -> None:
    assert "it has no LMS, or was not asked to let itself be watched" in refused(os.getpid())


@as_root
def test_another_users_process() -> None:
    with subprocess.Popen(["sleep", "60"], user=NOBODY) as other:
        assert f"process {other.pid} is nobody's: only that user can watch it" in refused(other.pid)
        other.kill()


CONNECT = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
connection.settimeout(20)
sys.exit(len(connection.recv(1)))
"""
"""Its exit code is 1 if it is told anything."""


def connected(path: Path, user: int) -> "subprocess.CompletedProcess[str]":
    command = ["/usr/bin/python3", "-c", CONNECT, str(path)]
    return subprocess.run(command, user=user, capture_output=True, text=True, timeout=60)


@as_root
def test_another_user_is_kept_out_by_the_folder(training: int) -> None:
    assert "PermissionError" in connected(socket_of(training), NOBODY).stderr
    assert connected(socket_of(training), os.geteuid()).returncode == 1


@as_root
def test_where_the_folder_is_open_whoever_connects_is_asked_for_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as of_sockets:
        for module in ("sockets", "server", "client"):
            monkeypatch.setattr(f"torch_lms.live.{module}.folder", lambda: Path(of_sockets))
        with torch_lms.session(limit="1GB", device="cpu") as lms:
            server = Server(lms.reading)
            os.chmod(of_sockets, 0o711)
            path = socket_of(os.getpid())
            path.chmod(0o666)
            assert connected(path, NOBODY).returncode == 0
            assert connected(path, os.geteuid()).returncode == 1
            with pytest.raises(UsageError, match="closed to all others"):
                next(readings_of(os.getpid()))
            os.chmod(of_sockets, 0o700)
            assert next(readings_of(os.getpid())).pid == os.getpid()
            server.close()
            with pytest.raises(UsageError, match="cannot be watched"):
                next(readings_of(os.getpid()))


def test_a_socket_that_cannot_be_made_keeps_nobody_from_training(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    for module in ("sockets", "server"):
        monkeypatch.setattr(f"torch_lms.live.{module}.folder", lambda: tmp_path)
    monkeypatch.setenv("TORCH_LMS_WATCH", "1")
    with torch_lms.session(limit="1GB", device="cpu"):
        assert "nobody can watch this process" in caplog.text


def test_a_process_that_is_stopped_and_then_killed(tmp_path: Path) -> None:
    """It is waited for; and the socket that it leaves behind is known as such."""
    with watched(tmp_path) as process:
        process.send_signal(signal.SIGSTOP)
        command = [*LMS, "watch", str(process.pid), "--count", "1", "--json", "-"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watcher:
            time.sleep(1.0)
            assert watcher.poll() is None
            process.send_signal(signal.SIGCONT)
            written, _ = watcher.communicate(timeout=PATIENCE_S)
        assert json.loads(written)["pid"] == process.pid
        process.kill()
        process.wait()
        assert f"there is no process {process.pid}; its socket was left when it was killed" in refused(process.pid)
        left = socket_of(process.pid).rename(socket_of(os.getpid()))  # as if this process had got its number
    try:
        assert "was left by another process of this number that was killed" in refused(os.getpid())
    finally:
        left.unlink()


FORKING = """
import os, sys
import torch
from torch_lms.live.sockets import socket_of

def sockets():
    found = []
    for number in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{number}"
        if os.path.lexists(path) and os.readlink(path).startswith("socket:"):
            found.append(number)
    return found

assert len(sockets()) == 3, sockets()
child = os.fork()
if child == 0:
    sys.exit(len(sockets()))
assert os.waitpid(child, 0)[1] == 0
assert len(sockets()) == 3, sockets()
assert socket_of(os.getpid()).exists()
"""


def test_a_fork_lets_go_of_it(tmp_path: Path) -> None:
    """The child holds none of the sockets open, and its end does not remove the file."""
    (tmp_path / "fork.py").write_text(FORKING)
    command = [*LMS, "run", "--watch", "--device", "cpu", "fork.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr


def test_the_sockets_go_with_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_LMS_WATCH", "1")
    for _ in range(2):
        with torch_lms.session(limit="1GB", device="cpu"):
            assert socket_of(os.getpid()).exists()
        assert not socket_of(os.getpid()).exists()


def test_one_that_answers_in_another_version(tmp_path: Path) -> None:
    folder().mkdir(mode=0o700, exist_ok=True)
    path = socket_of(os.getpid())
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        try:
            with subprocess.Popen([*LMS, "watch", str(os.getpid())], stderr=subprocess.PIPE, text=True) as watcher:
                listener.settimeout(PATIENCE_S)
                with listener.accept()[0] as connection:
                    connection.sendall(b'{"format": 2}\n')
                    _, errors = watcher.communicate(timeout=PATIENCE_S)
        finally:
            path.unlink()
    assert watcher.returncode == 2
    assert "the session runs another version of torch-lms" in errors
