"""Each wait of the executor of devices with streams, left out in turn, and what shows that it is missing, as a table.

    python -m tests.accelerator.mutants [--programs N] [--match TEXT]

A mutant is a process of its own, in which one wait of ``runtime/streams.py``, ``runtime/staging.py`` or
``native/csrc`` is left out. It runs programs until one goes wrong: those written for that wait first, then
random ones (``tests.accelerator.fuzz``). A wait that nothing misses is either needless, or not tested. Exits with 1 if
there is one.
"""

import argparse
import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
PROGRAMS = 60
_MAX_S = 900.0


@dataclass(frozen=True)
class Mutant:
    """One wait that is left out.

    Attributes:
        name: what nobody waits for then.
        module: of the source.
        old: lines there, once, without their indentation.
        new: what stands instead.
    """

    name: str
    module: str
    old: str
    new: str = "pass"

    @property
    def is_native(self) -> bool:
        """Whether it is the native interposer's wait."""
        return self.module in ("calls", "carrier", "lanes")

    @property
    def file(self) -> Path:
        """The source."""
        package = ROOT / "src" / "torch_lms"
        native, python = package / "native" / "csrc" / f"{self.module}.h", package / "runtime" / f"{self.module}.py"
        return native if self.is_native else python

    def applied(self, source: str) -> str:
        """``source`` without the wait.

        Raises:
            ValueError: it is not there, or not once.
        """
        if source.count(self.old) != 1:
            raise ValueError(f"{self.name}: expected once in {self.file.name}: {self.old!r}")
        return source.replace(self.old, self.new)


MUTANTS = (
    Mutant(
        "a copy down: for the streams that used the page",
        "streams",
        "self._device.wait(self._out, self._device.record(stream) if mark is None else mark)",
    ),
    Mutant("a copy down: for the page to come", "streams", "self._device.wait(self._out, use.arrived)"),
    Mutant(
        "a copy down: for the last use, not one before",
        "streams",
        "self._marks.first_after(stream, last_use)",
        "self._marks.first_after(stream, last_use - 1)",
    ),
    Mutant("freeing after a copy: for that copy", "streams", "self._await(self._use_of(entry).home, copy.done)"),
    Mutant(
        "freeing memory of an unknown stream: the allocator for those who use it",
        "streams",
        "for stream in (self._out, *use.streams):\n                self._device.keep_for(storage, stream)",
    ),
    Mutant(
        "freeing: for streams that used the page since its copy, or without one",
        "streams",
        "self._let_finish(use, storage)\n        try:",
        "pass\n        try:",
    ),
    Mutant(
        "recomputing: home for the program's stream",
        "streams",
        "self._catch_up(use.home)\n        try:",
        "try:",
    ),
    Mutant("recomputing: home for the inputs", "streams", "self.use(inputs)\n                make()", "make()"),
    Mutant(
        "recomputing: other streams for the result",
        "streams",
        "use.streams, use.arrived = {use.home}, done",
        "use.streams, use.arrived = {use.home, self._device.current_stream()}, done",
    ),
    Mutant("recomputing: streams that know an input for its end", "streams", "self._device.wait(stream, done)"),
    Mutant(
        "recomputing: a stream that uses an input next for its end", "streams", "self._device.wait(stream, use.read)"
    ),
    Mutant(
        "a copy up: home for the program's stream",
        "streams",
        "self._catch_up(home)\n        self._device.allocate",
        "self._device.allocate",
    ),
    Mutant(
        "a copy up: for whoever had the memory before",
        "streams",
        "self._device.wait(self._in, self._device.record(home))",
    ),
    Mutant("home for a copy up", "streams", "self._await(use.home, use.arrived)"),
    Mutant("another stream for a copy up", "streams", "self._await(stream, use.arrived)"),
    Mutant(
        "the allocator for another stream that used a fetched page",
        "streams",
        "if storage is not None:\n                self._device.keep_for(storage, stream)",
    ),
    Mutant(
        "a slot of host memory for the copies in and out of it",
        "streams",
        "if events:\n            self._retired.append((events, copy.slots[0]))\n        else:\n            ",
        "if True:\n            ",
    ),
    Mutant(
        "a slot that is needed now for its copies",
        "streams",
        "for event in events:\n                self._wait(partial(self._device.synchronize, event))\n",
        "pass\n",
    ),
    Mutant(
        "an eviction given up: for its copy",
        "streams",
        "self._device.synchronize(self._device.record(self._out))\n        self.discard(entry)",
        "self.discard(entry)",
    ),
    Mutant(
        "a fetch given up: for its copy",
        "streams",
        "self._device.synchronize(self._device.record(self._in))\n        self._device.free(storage)",
        "self._device.free(storage)",
    ),
    Mutant(
        "the end of the session: for all copies",
        "streams",
        "for stream in (self._out, self._in):\n            self._device.synchronize(self._device.record(stream))\n",
        "pass\n",
    ),
    Mutant(
        "staging down: the disk for the copy into the buffer",
        "staging",
        "self._hold(number, partial(self._device.synchronize, self._device.record(stream)))\n            writes",
        "writes",
    ),
    Mutant("staging down: the buffer for its write", "staging", "self._busy[number] = writes[-1].wait"),
    Mutant(
        "staging up: the copy for the read of the disk",
        "staging",
        "self._hold(number, disk.read(slot, memory_of(buffer)).wait)",
        "disk.read(slot, memory_of(buffer))",
    ),
    Mutant(
        "staging up: the buffer for its copy",
        "staging",
        "self._busy[number] = partial(self._device.synchronize, self._device.record(stream))",
    ),
    Mutant(
        "native: a copy down: for the streams that used the page",
        "lanes",
        "moments.push_back(first == marks.end() ? record(stream(id)) : first->second);",
        "",
    ),
    Mutant("native: a copy down: for the page to come", "lanes", "moments.push_back(use.arrived);", ""),
    Mutant(
        "native: a copy down: for the last use, not one before",
        "lanes",
        "marks.end(), last_use, []",
        "marks.end(), last_use - 1, []",
    ),
    Mutant(
        "native: freeing after a copy: for that copy",
        "lanes",
        "here = await(use_of(page).home, found->second.done, std::move(here));",
        "",
    ),
    Mutant(
        "native: freeing memory of an unknown stream: the allocator for those who use it",
        "lanes",
        "keep_for(storage, out_);\n      for (const StreamId id : use.streams) {\n        "
        "keep_for(storage, stream(id));\n",
        "for (const StreamId id : use.streams) {\n        static_cast<void>(id);\n",
    ),
    Mutant(
        "native: freeing: for streams that used the page since its copy, or without one",
        "lanes",
        "!use.arrived && let_finish(use, storage);",
        "false;",
    ),
    Mutant("native: recomputing: home for the program's stream", "lanes", "catch_up(home);\n    go_to", "go_to"),
    Mutant("native: recomputing: the home of an input for its end", "lanes", "done->hold_up(stream(use.home));", ""),
    Mutant("native: recomputing: streams that know an input for its end", "lanes", "done->hold_up(stream(id));", ""),
    Mutant(
        "native: recomputing: a stream that uses an input next for its end",
        "lanes",
        "use.read->hold_up(stream(current));",
        "",
    ),
    Mutant(
        "native: recomputing: home for the inputs",
        "carrier",
        "lanes->use(input.page, input.storage);",
        "static_cast<void>(input);",
    ),
    Mutant(
        "native: recomputing: other streams for the result",
        "lanes",
        "use.streams.assign(1, home);",
        "use.streams.assign(1, home);\n      use.streams.push_back(before);",
    ),
    Mutant(
        "native: recomputing: letting go of a constant for home",
        "calls",
        "bytes_of(copy.storage()).record_stream(guard->getStream(copy.device()));",
        "static_cast<void>(guard);",
    ),
    Mutant("native: a copy up: home for the program's stream", "lanes", "catch_up(use.home);\n    {", "{"),
    Mutant(
        "native: a copy up: for whoever had the memory before",
        "lanes",
        "allocated->hold_up(in_);",
        "",
    ),
    Mutant("native: home for a copy up", "lanes", "here = await(use.home, use.arrived, std::move(here));", ""),
    Mutant("native: another stream for a copy up", "lanes", "await(current, use.arrived, {});", ""),
    Mutant(
        "native: the allocator for another stream that used a fetched page",
        "lanes",
        "keep_for(storage, stream(current));",
        "",
    ),
    Mutant(
        "native: host memory for the copies in and out of it",
        "lanes",
        "if (busy.empty()) {",
        "if (true) {",
    ),
    Mutant(
        "native: host memory whose page is gone for its copies",
        "lanes",
        "return mark->is_past(); })) {",
        "return true; })) {",
    ),
    Mutant(
        "native: an eviction given up: for its copy", "lanes", "wait_for(out_);\n    discard(page);", "discard(page);"
    ),
    Mutant("native: a fetch given up: for its copy", "lanes", "wait_for(in_);\n    free", "free"),
)


class _Loader(SourceFileLoader):
    """Loads a module of Python's without one wait."""

    def __init__(self, name: str, mutant: Mutant) -> None:
        super().__init__(name, str(mutant.file))
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        source = self._mutant.applied(self._mutant.file.read_text())
        return compile(source, str(self._mutant.file), "exec")


class _Finder(MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != f"torch_lms.runtime.{self._mutant.module}":
            return None
        found = PathFinder.find_spec(fullname, path)
        if found is not None:
            found.loader = _Loader(fullname, self._mutant)
        return found


def _build_without(mutant: Mutant) -> None:
    """This process has a native interposer without one wait."""
    from torch_lms.native import build

    scratch = Path(tempfile.mkdtemp(prefix="torch-lms-mutant-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    shutil.copytree(mutant.file.parent, scratch / "csrc")
    (scratch / "csrc" / mutant.file.name).write_text(mutant.applied(mutant.file.read_text()))
    build._SOURCES = scratch / "csrc"
    os.environ.update(TORCH_LMS_CACHE=str(scratch), TORCH_LMS_INTERPOSER="native")


def search(mutant: Mutant | None, programs: int) -> str:
    """What goes wrong first without the wait, in this process; "" if nothing does."""
    os.environ["TORCH_LMS_PLANNING"] = "at-once"  # some programs count on plans
    if mutant is not None and mutant.is_native:
        _build_without(mutant)
    elif mutant is not None:
        os.environ["TORCH_LMS_INTERPOSER"] = "python"
        sys.meta_path.insert(0, _Finder(mutant))
    from tests import accelerator
    from tests.accelerator import fuzz
    from tests.accelerator import programs as written

    device = accelerator.first_device()
    for name, program in written.PROGRAMS.items():
        if found := written.difference(program, device):
            return f"{name}: {found}"
    for seed in range(programs):
        if found := fuzz.verdict(seed, device).difference:
            return f"random program {seed}: {found}"
    return ""


def found_by_process(number: int, programs: int) -> str:
    """The same in a process of its own. A crash, and one that does not end, are found, too."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.accelerator.mutants"]
    command += ["--alone", str(number), "--programs", str(programs)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_MAX_S, check=False)
    except subprocess.TimeoutExpired:
        return f"did not end within {_MAX_S:.0f} s"
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [""]
        return f"the process ended with {done.returncode}: {lines[-1]}"
    return done.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=PROGRAMS, help="random ones for each mutant at most")
    parser.add_argument("--match", default="", help="only mutants whose name contains this")
    parser.add_argument("--alone", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.alone is not None:
        print(search(MUTANTS[chosen.alone] if chosen.alone >= 0 else None, chosen.programs))
        return 0
    table = Table(title="Waits left out")
    for column in ("nobody waits:", "shown by", "seconds"):
        table.add_column(column, justify="right" if column == "seconds" else "left")
    missed = 0
    for number, mutant in enumerate(MUTANTS):
        if chosen.match not in mutant.name:
            continue
        began = time.monotonic()
        found = found_by_process(number, chosen.programs)
        missed += not found
        table.add_row(mutant.name, found[:90] or "NOTHING", f"{time.monotonic() - began:.0f}")
        print(f"{mutant.name}: {found[:160] or 'NOTHING'}", flush=True)
    Console(width=160).print(table)
    print(f"{missed} waits that nothing misses")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
