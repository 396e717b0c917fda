"""The native interposer under a race detector: ThreadSanitizer watches four threads that train in one session.

    python -m tests.races               # a minute; needs g++ with libtsan, and setarch
    python -m tests.races --steps 100

The interposer is built anew with ThreadSanitizer, in a directory of its own. PyTorch and Python are not: what they do
by themselves is not watched, but Python's lock is, and so is every mutex of ours. Exits with 1 if a race was found.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

_SUPPRESSIONS = "".join(
    f"called_from_lib:{name}\n"
    for name in ("libtorch_cpu.so", "libtorch_python.so", "libc10.so", "libgomp", "_multiarray_umath")
)

_BUILD = "from torch_lms.native import build; build.build(build.cached_file())"

_TRAIN = """
import sys, threading, torch, torch_lms

torch.set_num_threads(1)

def train(seed, steps):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        model(torch.randn(32, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

steps = int(sys.argv[1])
for limit in ("150KB", "10MB"):
    with torch_lms.session(limit=limit, min_size=1024, device="cpu") as lms:
        train(0, 8)
        threads = [threading.Thread(target=train, args=(number, steps)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        train(0, 4)
        lms.validate()
        stats = lms.stats()
        assert stats.interposer == "native", stats.interposer_reason
        print(f"limit {limit}: {stats.planned_steps} planned steps, {stats.evictions} evictions")
"""


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def races(steps: int) -> list[str]:
    """The races that were found, each as ThreadSanitizer tells of it.

    Raises:
        FileNotFoundError: there is no ThreadSanitizer here, or no setarch.
        ChildProcessError: the training failed.
    """
    library, setarch = _output("g++", "-print-file-name=libtsan.so"), shutil.which("setarch")
    if not os.path.isabs(library) or setarch is None:
        raise FileNotFoundError("this needs g++ with libtsan, and setarch")
    with tempfile.TemporaryDirectory() as scratch:
        compiler = Path(scratch, "g++-tsan")
        compiler.write_text('#!/bin/sh\nexec g++ -fsanitize=thread -g "$@"\n')
        compiler.chmod(0o755)
        Path(scratch, "suppressions").write_text(_SUPPRESSIONS)
        told = Path(scratch, "told")
        built = os.environ | {"CXX": str(compiler), "TORCH_LMS_CACHE": scratch, "TORCH_LMS_PLANNING": "at-once"}
        subprocess.run([sys.executable, "-c", _BUILD], env=built, check=True, cwd=ROOT)
        watched = built | {
            "LD_PRELOAD": library,
            "TSAN_OPTIONS": f"suppressions={scratch}/suppressions log_path={told} ignore_noninstrumented_modules=1",
        }
        # without random addresses: ThreadSanitizer wants some for itself
        command = [setarch, "-R", sys.executable, "-c", _TRAIN, str(steps)]
        ended = subprocess.run(command, env=watched, cwd=ROOT, check=False)
        found = [path.read_text() for path in Path(scratch).glob("told*")]
        if ended.returncode and not found:
            raise ChildProcessError(f"the training ended with {ended.returncode}")
        return found


def main() -> int:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="of each thread (default: %(default)s)")
    try:
        found = races(parser.parse_args().steps)
    except (FileNotFoundError, ChildProcessError) as error:
        print(error, file=sys.stderr)
        return 2
    for race in found:
        print(race)
    print("no race" if not found else "there are races")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
