"""``torch-lms run``: everything a script sees and shows is as under ``python``; only its memory is paged."""

import json
import signal
import socket
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

PYTHON = [sys.executable]
LMS = [sys.executable, "-m", "torch_lms", "run"]


@dataclass(frozen=True)
class Ended:
    code: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Desk:
    """A directory to write scripts in and to run them from."""

    directory: Path

    def write(self, name: str, text: str) -> str:
        file = self.directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return name

    def start(self, command: list[str], *arguments: str) -> "subprocess.Popen[str]":
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*command, *arguments], cwd=self.directory, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )

    def run(self, command: list[str], *arguments: str, stdin: str = "") -> Ended:
        return end(self.start(command, *arguments), stdin)

    def alike(self, *arguments: str, stdin: str = "") -> Ended:
        """Run with python and with LMS; what they show and how they end must not differ."""
        expected, with_lms = self.start(PYTHON, *arguments), self.start(LMS, *arguments)
        ended = end(expected, stdin)
        assert end(with_lms, stdin) == ended
        return ended


def end(process: "subprocess.Popen[str]", stdin: str = "") -> Ended:
    with process:
        stdout, stderr = process.communicate(stdin, timeout=120)
    return Ended(process.returncode, stdout, stderr)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


# ---- what does not depend on torch: most scripts here do without, to be quick


def test_arguments_like_ours_reach_the_script(desk: Desk) -> None:
    script = desk.write("sub/show.py", "import sys; print(sys.argv, sys.path[0], __file__, __name__)")
    theirs = ["--limit", "3", "-h", "--stats", "x", "-m", "--", "-", "", "a b", "--json=-"]
    assert "'--limit', '3', '-h'" in desk.alike(script, *theirs).stdout


def test_module_with_arguments_like_ours(desk: Desk) -> None:
    desk.write("package/__init__.py", "")
    desk.write("package/other.py", "value = 5")
    desk.write(
        "package/tool.py",
        "import sys\nfrom .other import value\n"
        "print(sys.argv, sys.path[0], __file__, __package__, __spec__.name, value)",
    )
    desk.write("package/__main__.py", "from . import tool; print(__spec__.name)")
    assert "package.tool 5" in desk.alike("-m", "package.tool", "--limit", "3", "-m").stdout
    assert "package.__main__" in desk.alike("-m", "package", "-h").stdout


def test_directory_and_zip_file(desk: Desk) -> None:
    desk.write("app/__main__.py", "import sys, part; print(sys.argv, sys.path[0], part.value)\n1/0")
    desk.write("app/part.py", "value = 7")
    assert desk.alike("app", "x").code == 1
    with zipfile.ZipFile(desk.directory / "app.zip", "w") as archive:
        for name in ("__main__.py", "part.py"):
            archive.write(desk.directory / "app" / name, name)
    assert "app.zip', 'x'" in desk.alike("app.zip", "x").stdout


def test_compiled_script(desk: Desk) -> None:
    desk.write("source.py", "print(__name__, __file__)")
    subprocess.run([*PYTHON, "-c", "import py_compile; py_compile.compile('source.py', 'c.pyc')"], cwd=desk.directory)
    assert desk.alike("c.pyc").code == 0


def test_link_finds_the_modules_beside_its_target(desk: Desk) -> None:
    desk.write("real/main.py", "import beside, sys; print(beside.value, sys.path[0], __file__)")
    desk.write("real/beside.py", "value = 9")
    (desk.directory / "link.py").symlink_to("real/main.py")
    assert desk.alike("link.py").stdout.startswith("9 ")


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("", 0),
        ("sys.exit()", 0),
        ("sys.exit(0)", 0),
        ("sys.exit(None)", 0),
        ("sys.exit(3)", 3),
        ("sys.exit(-1)", 255),
        ("sys.exit(256)", 0),
        ("sys.exit('out of cheese')", 1),
        ("sys.exit(('a', 1))", 1),
        ("os._exit(9)", 9),
        ("os.abort()", -signal.SIGABRT),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("raise BrokenPipeError", 1),
    ],
)
def test_exit_codes(desk: Desk, ending: str, code: int) -> None:
    script = desk.write("ending.py", f"import os, sys\nprint('working', flush=True)\n{ending}\n")
    assert desk.alike(script).code == code


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    1/0\ntry:\n    f()\nexcept Exception as error:\n    raise ValueError('bad') from error",
        "def f(n):\n    return f(n - 1) if n else {}['key']\nf(3)",
        "import json\njson.loads('{')",
        "raise ExceptionGroup('both', [ValueError(1), KeyError(2)])",
        "import sys\nsys.excepthook = lambda kind, error, tb: print(kind, error, tb.tb_lineno, not tb)\n1/0",
        "import warnings\nwarnings.warn('beware')",
        "import click\n@click.command()\n@click.argument('x')\ndef f(x): ...\nf()",
        "import click\nraise click.ClickException('theirs')",
        "from torch_lms.errors import UsageError\nraise UsageError('theirs')",
        "import threading\nthreading.Thread(target=lambda: 1/0, name='t').start()",
        "x = (\n",
        "def f():\nreturn 1",
        "import broken_beside",
        "import not_there",
    ],
)
def test_tracebacks(desk: Desk, text: str) -> None:
    desk.write("broken_beside.py", "x = = 1")
    script = desk.write("failing.py", text)
    ended = desk.alike(script)
    assert ended.stderr or ended.stdout
    desk.alike("-m", "failing")


def test_recursion_without_end(desk: Desk) -> None:
    script = desk.write("deep.py", "def f(): f()\nf()")
    ended = desk.run(LMS, script)
    assert (ended.code, "torch_lms" in ended.stderr) == (1, False)


@pytest.mark.parametrize(
    "text",
    [
        "print(input(), input())",
        "import atexit\natexit.register(print, 'later')\nprint('first')\n1/0",
        "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.3), print(g))).start()\ng = 5",
        "import pickle\nclass C: pass\nprint(pickle.loads(pickle.dumps(C)), C.__module__)",
        "import sys\nm = sys.modules['__main__']\nprint(m.__dict__ is globals(), __spec__, __package__, __doc__, m)",
        "import inspect\nclass C: pass\nprint(inspect.getsource(C))",
        "'documented'\nfrom __future__ import annotations\ndef f(x: nothing): ...\nprint(f.__annotations__, __doc__)",
        "import os\nif os.fork() == 0:\n    raise SystemExit(4)\nprint(os.waitstatus_to_exitcode(os.wait()[1]))",
        "import os; print(os.getcwd())",
    ],
)
def test_what_a_script_sees(desk: Desk, text: str) -> None:
    script = desk.write("seeing.py", text)
    desk.alike(script, stdin="one\ntwo\n")


SPAWN = """
import multiprocessing
import helper

def square(x):
    return helper.twice(x) * x, __name__

if __name__ == "__main__":
    with multiprocessing.get_context({method!r}).Pool(2) as pool:
        print(pool.map(square, range(4)))
"""


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_multiprocessing(desk: Desk, method: str) -> None:
    desk.write("helper.py", "def twice(x): return 2 * x")
    script = desk.write("pool.py", SPAWN.format(method=method))
    assert "18" in desk.alike(script).stdout
    assert "18" in desk.alike("-m", "pool").stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("arguments", [["wait.py"], ["-m", "wait"]])
def test_signals(desk: Desk, number: signal.Signals, arguments: list[str]) -> None:
    desk.write("wait.py", "import atexit, time\natexit.register(print, 'bye')\nprint('on', flush=True)\ntime.sleep(60)")

    def interrupted(command: list[str]) -> Ended:
        process = desk.start(command, *arguments)
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        time.sleep(0.3)  # until it sleeps, too: a traceback tells which line the signal found it in
        process.send_signal(number)
        return end(process)

    ended = interrupted(LMS)
    assert ended == interrupted(PYTHON)
    assert ended.code == -number


def test_missing_script(desk: Desk) -> None:
    ended = desk.run(LMS, "missing.py")
    assert (ended.code, desk.run(PYTHON, "missing.py").code) == (2, 2)
    assert f"can't open file '{desk.directory / 'missing.py'}': [Errno 2] No such file or directory" in ended.stderr


def test_directory_without_main_and_missing_module(desk: Desk) -> None:
    (desk.directory / "empty").mkdir()
    assert desk.alike("empty").code == 1
    assert desk.alike("-m", "missing").code == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--limit", "12 bananas"], "--limit must be bytes"),
        (["--limit", "-3"], "--limit must be bytes"),
        (["--limit", "101%"], "--limit must be at most 100%"),
        (["--min-size", "1XB"], "--min-size must be bytes"),
        (["--host-limit", ""], "--host-limit must be bytes"),
        (["--spill-dir", "missing"], "Directory 'missing' does not exist"),
        (["--stats", "missing/file"], "there is no directory"),
        (["--json", "."], "expected a file to write, got a directory"),
        (["--colour", "red"], "No such option"),
    ],
)
def test_bad_options_stop_before_the_script(desk: Desk, options: list[str], expected: str) -> None:
    script = desk.write("never.py", "print('ran')")
    ended = desk.run(LMS, *options, script)
    assert (ended.code, ended.stdout) == (2, "")
    assert expected in ended.stderr
    assert "Traceback" not in ended.stderr


def test_script_without_torch_has_no_statistics(desk: Desk) -> None:
    script = desk.write("plain.py", "import sys; sys.exit(5)")
    ended = desk.run(LMS, "--stats", "stats.json", "--json", "run.json", script, "a")
    assert ended.code == 5
    assert "the script did not import torch" in ended.stderr
    assert json.loads((desk.directory / "stats.json").read_text()) is None
    result = json.loads((desk.directory / "run.json").read_text())
    assert (result["script"], result["arguments"], result["exit_code"], result["stats"]) == ("plain.py", ["a"], 5, None)


# ---- with torch


TRAIN = """
import sys
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU()) for _ in range(6)])
optimizer = torch.optim.Adam(model.parameters())
for step in range(int(sys.argv[1])):
    loss = model(torch.randn(1024, 512)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item().hex())
{ending}
"""


@pytest.mark.parametrize(("ending", "code"), [("sys.exit(3)", 3), ("torch.zeros(2) @ torch.zeros(3)", 1)])
def test_training_is_the_same_to_the_bit(desk: Desk, ending: str, code: int) -> None:
    script = desk.write("train.py", TRAIN.format(ending=ending))
    expected = desk.run(PYTHON, script, "2")
    ended = desk.run([*LMS, "--limit", "8MB", "--stats", "stats.json", "--json", "run.json"], script, "2")
    assert ended == expected
    assert ended.code == code
    stats = json.loads((desk.directory / "stats.json").read_text())
    assert stats["steps"] == 2
    assert stats["limit_bytes"] == 8_000_000
    assert stats["evicted_bytes"] > 0
    result = json.loads((desk.directory / "run.json").read_text())
    assert (result["exit_code"], result["stats"], result["options"]) == (code, stats, {"limit": "8MB"})


@pytest.mark.parametrize(
    "text",
    [
        "x @ torch.ones(2)",
        "x.numpy()",
        "x.exp().add_(1).sum().backward(torch.ones(2))",
        "from torch.utils.checkpoint import checkpoint as c\nc(lambda y: y @ torch.ones(2), x, use_reentrant=False)",
        "try:\n    x @ torch.ones(2)\nexcept RuntimeError as error:\n    raise ExceptionGroup('x', [error]) from error",
        "@torch.library.custom_op('mine::product', mutates_args=())\n"
        "def product(x: torch.Tensor) -> torch.Tensor:\n    return x @ torch.ones(2)\nproduct(x)",
    ],
)
def test_tracebacks_from_inside_torch(desk: Desk, text: str) -> None:
    script = desk.write("failing.py", f"import torch\nx = torch.ones(3, requires_grad=True)\n{text}\n")
    assert "Error" in desk.alike(script).stderr


PROFILED = """
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

model = nn.Sequential(nn.Linear(64, 64), nn.GELU())
with profile(activities=[ProfilerActivity.CPU], with_stack=True) as found:
    model(torch.ones(64, 64)).sum().backward()
print(sorted(event.name for event in found.events() if event.name.startswith("nn.Module")))
"""


def test_profilers_find_the_modules(desk: Desk) -> None:
    ended = desk.run(LMS, desk.write("profiled.py", PROFILED))
    assert ended.stdout == "['nn.Module: GELU_0', 'nn.Module: Linear_0', 'nn.Module: Sequential_0']\n", ended.stderr


def test_environment_set_before_importing_torch_counts(desk: Desk) -> None:
    text = "import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch\nprint(torch.get_num_threads())"
    assert desk.alike(desk.write("env.py", text)).stdout == "1\n"


@pytest.mark.parametrize(
    "first",
    ["import torch", "import torch_lms", "import torch.nn", "import torch_lms.compat", "from torch_lms import enable"],
)
def test_session_is_on_however_torch_comes_in(desk: Desk, first: str) -> None:
    script = desk.write("first.py", f"{first}\nimport torch, torch_lms\nprint(torch_lms.is_enabled())")
    assert desk.run(LMS, script) == Ended(0, "True\n", "")


def test_looking_for_torch_is_not_importing_it(desk: Desk) -> None:
    text = "import sys, importlib.util\nprint(importlib.util.find_spec('torch').name, 'torch' in sys.modules)"
    assert desk.alike(desk.write("look.py", text)).stdout == "torch False\n"


@pytest.mark.parametrize("ask", ["torch_lms.enable(limit='8MB')\nif True:", "with torch_lms.session(limit='8MB'):"])
def test_script_that_enables_lms_itself_adopts_the_session(desk: Desk, ask: str) -> None:
    text = f"import torch, torch_lms\n{ask}\n    print(torch_lms.is_enabled(), torch_lms.stats().limit_bytes)"
    ended = desk.run(LMS, "--limit", "4MB", desk.write("own.py", text))
    assert (ended.code, ended.stdout) == (0, "True 4000000\n")


def test_script_of_2019_finds_ibms_names(desk: Desk) -> None:
    text = "import torch\ntorch.cuda.set_enabled_lms(True)\nprint(torch.cuda.get_enabled_lms())"
    ended = desk.run(LMS, desk.write("ibm.py", text))
    assert (ended.code, ended.stdout) == (0, "True\n")


def test_trace_and_timeline_of_the_last_step(desk: Desk) -> None:
    script = desk.write("train.py", TRAIN.format(ending=""))
    ended = desk.run([*LMS, "--limit", "12MB", "--trace", "t.jsonl", "--timeline", "t.json"], script, "5")
    assert (ended.code, ended.stderr) == (0, "")
    written = json.loads((desk.directory / "t.json").read_text())
    assert {"evict", "fetch", "aten::addmm"} <= {event["name"] for event in written["traceEvents"]}
    about = written["otherData"]
    assert (about["what"], about["title"], about["limit_bytes"]) == ("run", "train.py 5", 12_000_000)
    assert about["trace"] == (desk.directory / "t.jsonl").read_text().splitlines()
    assert "aten::addmm" in {life["made_by"] for life in about["lives"]}
    summary = desk.run([sys.executable, "-m", "torch_lms", "trace"], "t.jsonl", "--json", "summary.json")
    assert (summary.code, summary.stderr) == (0, "")
    assert "aten::addmm" in summary.stdout
    found = json.loads((desk.directory / "summary.json").read_text())
    assert found["summary"]["demand_bytes"] == max(found["demand_curve"])
    assert len(found["summary"]["largest"]) == 10
    assert sum(nbytes for _, nbytes in found["summary"]["holders"]) == found["summary"]["demand_bytes"]


def test_where_room_was_never_short_there_is_no_trace(desk: Desk) -> None:
    script = desk.write("train.py", TRAIN.format(ending=""))
    ended = desk.run([*LMS, "--trace", "t.jsonl"], script, "1")
    assert ended.code == 0
    assert "Set a lower --limit" in ended.stderr
    assert not (desk.directory / "t.jsonl").exists()


def test_a_file_that_is_no_trace(desk: Desk) -> None:
    ended = desk.run([sys.executable, "-m", "torch_lms", "trace"], desk.write("x.jsonl", "{}\n"))
    assert ended.code != 0
    assert "expected a trace" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_statistics_after_the_script_has_ended_its_session(desk: Desk) -> None:
    script = desk.write("ends.py", "import torch, torch_lms\ntorch.ones(9).sum()\ntorch_lms.disable()")
    assert desk.run(LMS, "--limit", "4MB", "--stats", "stats.json", script) == Ended(0, "", "")
    assert json.loads((desk.directory / "stats.json").read_text())["limit_bytes"] == 4_000_000


def test_session_lasts_until_the_scripts_exit_functions(desk: Desk) -> None:
    text = "import atexit, torch, torch_lms\natexit.register(lambda: print(torch_lms.is_enabled()))"
    assert desk.run(LMS, desk.write("late.py", text)).stdout == "True\n"


def test_option_that_only_the_session_can_refuse(desk: Desk) -> None:
    script = desk.write("refused.py", "import torch\nprint('ran')")
    full = desk.write("file", "")
    ended = desk.run(LMS, "--spill-dir", full, script)
    assert (ended.code, ended.stdout, "Traceback" in ended.stderr) == (2, "", False)


def test_no_compile_makes_torch_compile_eager(desk: Desk) -> None:
    text = "import torch, torch._dynamo\nprint(torch._dynamo.config.disable)"
    script = desk.write("compiled.py", text)
    assert desk.run(LMS, script).stdout == "False\n"
    assert desk.run(LMS, "--no-compile", script).stdout == "True\n"


SPAWNED = """
import sys, torch
import torch.multiprocessing as mp
from torch import nn

def work(number, queue):
    torch.manual_seed(number)
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(6)))
    with torch.no_grad():
        queue.put((number, model(torch.randn(64, 256)).double().sum().item()))

if __name__ == "__main__":
    context = mp.get_context(sys.argv[1])
    queue = context.SimpleQueue()
    if sys.argv[1] == "spawn":
        mp.spawn(work, (queue,), nprocs=2)
    else:
        mp.start_processes(work, (queue,), nprocs=2, start_method=sys.argv[1])
    print(sorted([queue.get(), queue.get()]))
"""


def test_spawned_processes_have_lms(desk: Desk) -> None:
    script = desk.write("spawned.py", SPAWNED)
    expected = desk.run(PYTHON, script, "spawn")
    limited = ["--limit", "600KB", "--min-size", "1KiB", "--stats", "stats.json"]
    ended = desk.run(LMS, *limited, script, "spawn")
    assert (expected.code, ended.code, ended.stdout) == (0, 0, expected.stdout), ended.stderr
    for number in (0, 1):
        assert f"LMS is on in rank {number}" in ended.stderr
        stats = json.loads((desk.directory / f"stats.rank{number}.json").read_text())
        assert stats["evictions"] > 0
        assert stats["peak_resident_bytes"] <= 600_000
    forked = desk.run(LMS, *limited, script, "fork")
    assert (forked.code, forked.stdout) == (0, expected.stdout)
    assert "2 processes run without LMS, since they are forked" in forked.stderr


RANK = """
import hashlib, torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(*(nn.Linear(256, 256) for _ in range(6))))
optimizer = torch.optim.AdamW(model.parameters())
torch.manual_seed(dist.get_rank())
for _ in range(8):
    model(torch.randn(64, 256)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest(), flush=True)
dist.destroy_process_group()
"""

STARTER = """
import os, subprocess, sys
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[1], "WORLD_SIZE": "2"}
os.environ |= {"RANK": "0", "LOCAL_RANK": "0"}
other = subprocess.Popen([sys.executable, "rank.py"], env=os.environ | {"RANK": "1", "LOCAL_RANK": "1"})
exec(open("rank.py").read())
sys.exit(other.wait())
"""


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.mark.parametrize("how", ["launcher", "script"])
def test_ranks_have_lms(desk: Desk, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a launcher, and those that a script starts, as Lightning's does."""
    monkeypatch.setenv("TORCH_LMS_PLANNING", "at-once")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    desk.write("rank.py", RANK)
    desk.write("starter.py", STARTER)
    limit = ["--limit", "3MB", "--min-size", "1KiB", "--stats", "stats.json"]
    if how == "launcher":
        arguments = ["--standalone", "--nproc-per-node", "2", "rank.py", "-c", "torch/_inductor"]
        expected = desk.run([*PYTHON, "-m", "torch.distributed.run"], *arguments)
        ended = desk.run(LMS, *limit, "torchrun", *arguments)
        files = ["stats.rank0.json", "stats.rank1.json"]
    else:
        expected = desk.run(PYTHON, "starter.py", _free_port())
        ended = desk.run(LMS, *limit, "starter.py", _free_port())
        files = ["stats.json", "stats.rank1.json"]
    assert expected.code == ended.code == 0, ended.stderr
    digests = expected.stdout.replace("\n", "")  # lines of two processes may meet
    assert len(digests) == 2 * 64
    assert ended.stdout.replace("\n", "") == digests
    for file in files:
        stats = json.loads((desk.directory / file).read_text())
        assert stats["planned_steps"] > 0
        assert stats["evictions"] > 0


def test_what_is_no_rank_is_left_alone(desk: Desk) -> None:
    """Helpers of a rank, and other processes; the environment's own ``sitecustomize`` is imported as ever."""
    desk.write("sitecustomize.py", "import sys; sys.flag_of_mine = 1")
    desk.write("child.py", "import sys, torch_lms; print(sys.flag_of_mine, torch_lms.is_enabled(), sys.path[1:])")
    desk.write(
        "start.py",
        "import os, subprocess, sys\n"
        "def run(*command, **more):\n"
        "    print(subprocess.check_output([sys.executable, *command], env=os.environ | more))\n"
        "run('child.py')\n"
        "run('-c', 'import torch, torch_lms; print(torch_lms.is_enabled())', LOCAL_RANK='0')\n"
        "run('-c', 'import sys; print(sys.flag_of_mine)')",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(desk.directory))
        ended = desk.alike("start.py")
    assert ended.code == 0
