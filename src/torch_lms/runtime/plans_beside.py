"""Makes plans beside the program, in a process of its own (N15).

Not on a thread: planning is Python, and so holds the interpreter's lock. A program that gives the lock up for every
operation would have it back only 5 ms later each time; a step of a thousand operations would take seconds longer.
A process costs about 0.4 s of a processor to start, once, and a pickle of the trace, which takes milliseconds.

Not by a fork: the program has threads, of ours and of PyTorch's, and pages that would have to be brought back first
(N13). The process is a new interpreter that imports no PyTorch.
"""

import os
import pickle
import subprocess
import sys
import time
import weakref
from collections import deque
from contextlib import suppress
from queue import SimpleQueue
from threading import Event

from torch_lms.engine import MadePlan, MakePlan, Planner, PlanOrder, PlansAtOnce
from torch_lms.planner.kept_plans import KeptPlans, kept_in
from torch_lms.planner.makers import QUICK
from torch_lms.planner.serve import Answer
from torch_lms.stores.io_pool import IoThread

_PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; from torch_lms.planner.serve import serve; serve()"

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Planning is not parallel, and a pool of threads takes time to start."""


def new_planner(make_plan: MakePlan) -> Planner:
    """One beside the program; where ``TORCH_LMS_PLANNING`` is "at-once", one that the program waits for. Plans are kept
    in the directory ``TORCH_LMS_PLANS``, if that is set.
    """
    is_awaited = os.environ.get("TORCH_LMS_PLANNING") == "at-once"
    make_first = QUICK.get(make_plan)
    if make_first is not None and is_awaited:
        make_first = make_plan
    directory = kept_in()
    if directory is not None:
        if make_first is not None:
            make_first = KeptPlans(make_plan, directory, make_first)
        make_plan = KeptPlans(make_plan, directory)
    return (PlansAtOnce if is_awaited else PlansBeside)(make_plan, make_first)


class PlansBeside:
    """See ``engine.Planner``. A thread, which only waits, hands orders to the process and takes what comes back.

    The process is started when something is ordered for the first time. It ends with this, with the program however
    that ends, and is not the terminal's: Ctrl-C does not reach it. A forked child must not use this.

    Args:
        make_plan: makes a plan, in the process: it is pickled.
        make_first: the same, of first plans; None if plans do not depend on the times of operations.
    """

    spares_program = True

    def __init__(self, make_plan: MakePlan, make_first: MakePlan | None = None) -> None:
        self.keeps_plans = isinstance(make_plan, KeptPlans)
        self.improves = make_first is not None
        self._make_plan = make_plan
        self._make_first = make_first or make_plan
        self._orders: SimpleQueue[PlanOrder | None] = SimpleQueue()
        self._made: deque[MadePlan] = deque()
        self._awaited = 0
        self._has_news = Event()
        self._thread: IoThread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    @property
    def has_made(self) -> bool:
        """See ``Planner``."""
        return bool(self._made)

    def get_ready(self) -> None:
        """See ``Planner``."""
        if self._thread is None:
            self._thread = IoThread(self._serve, "torch-lms-plans")
            self._thread.start()

    def order(self, order: PlanOrder) -> None:
        """See ``Planner``."""
        self._awaited += 1
        self._orders.put(order)
        try:
            self.get_ready()
        except RuntimeError as error:  # no more threads
            self._thread = None
            self._done(MadePlan(order, None, 0.0, 0.0, 0.0, f"no thread could be started: {error}"))

    def take(self) -> list[MadePlan]:
        """See ``Planner``."""
        made = [self._made.popleft() for _ in range(len(self._made))]
        self._awaited -= len(made)
        return made

    def wait(self) -> None:
        """See ``Planner``."""
        while len(self._made) < self._awaited and not self._is_closed:
            self._has_news.clear()
            if len(self._made) < self._awaited:
                self._has_news.wait(timeout=1.0)

    def close(self) -> None:
        """See ``Planner``."""
        self._is_closed = True
        self._orders.put(None)
        if self._process is not None:
            _end(self._process, os.getpid())

    # -- on the thread -----------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        failure = ""
        try:
            process = self._start()
        except (OSError, ValueError) as error:
            failure = f"its process could not be started: {error}"
        while (order := self._orders.get()) is not None:
            start_s = time.perf_counter()
            answer = Answer(0.0, failure)
            if not failure:
                try:
                    answer = _ask(process, self._make_first if order.is_first else self._make_plan, order)
                except (OSError, EOFError, pickle.PickleError) as error:
                    failure = f"its process ended ({process.poll()}): {error!r}"
                    answer = Answer(0.0, failure)
            plan = None if answer.failure else answer.plan(order.trace, order.limit)
            self._done(MadePlan(order, plan, answer.cpu_s, start_s, time.perf_counter(), answer.failure))
        if self._process is not None:
            _end(self._process, os.getpid())
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                with suppress(OSError):  # an order that nobody read
                    pipe.close()

    def _done(self, made: MadePlan) -> None:
        self._made.append(made)
        self._has_news.set()

    def _start(self) -> "subprocess.Popen[bytes]":
        if not sys.executable:
            raise OSError("this interpreter does not know its own executable")
        process = self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # who waits for the end of the program's output must not wait for this
            env={**os.environ, **_ONE_THREAD},
            process_group=0,
        )
        weakref.finalize(self, _end, process, os.getpid())
        return process


def _ask(process: "subprocess.Popen[bytes]", make_plan: MakePlan, order: PlanOrder) -> Answer:
    """Have the process make a plan, and wait for it."""
    assert process.stdin is not None
    assert process.stdout is not None
    pickle.dump((make_plan, order.trace, order.limit, dict(order.ids), tuple(order.speeds)), process.stdin)
    process.stdin.flush()
    answer: Answer = pickle.load(process.stdout)
    return answer


def _end(process: "subprocess.Popen[bytes]", owner: int) -> None:
    """End the process, if this is the one that started it, and not a fork of that."""
    if os.getpid() == owner and process.poll() is None:
        process.kill()
        process.wait()
