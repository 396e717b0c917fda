"""The process that makes plans: orders come by its standard input, plans go by its standard output.

Whoever starts it (``runtime.plans_beside``) is the only one that writes to it and reads from it, so both sides trust
each other's pickles.
"""

import os
import pickle
import signal
import time
import traceback
from collections.abc import Mapping
from typing import NamedTuple

from torch_lms.engine import MakePlan, Speeds
from torch_lms.policy import Plan, Recomputation
from torch_lms.residency import PageId
from torch_lms.trace import Trace

_NICE = 5
"""The program's own threads come first where there are not cores enough for all."""


class Answer(NamedTuple):
    """The fields of a ``Plan`` that its trace does not tell, since whoever asked has that.

    Attributes:
        cpu_s: seconds of a processor that it took; the first has the start of the process, too.
        failure: what went wrong, as a traceback; "" if nothing did. Then the rest counts.
    """

    cpu_s: float
    failure: str = ""
    evicts: tuple[tuple[int, ...], ...] = ()
    fetches: tuple[tuple[int, ...], ...] = ()
    away: frozenset[int] = frozenset()
    known: Mapping[PageId, int] = {}
    recomputations: tuple[Recomputation, ...] = ()
    waits_for_evictions: bool = False

    def plan(self, trace: Trace, limit: int) -> Plan:
        """The plan for ``trace``, made under ``limit``."""
        return Plan(
            trace,
            limit,
            self.evicts,
            self.fetches,
            self.away,
            self.known,
            self.recomputations,
            self.waits_for_evictions,
        )


def serve() -> None:
    """Make plans until there is nobody to ask for any."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the program
    os.nice(_NICE)
    with os.fdopen(os.dup(0), "rb") as orders, os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # whatever is printed must not end up among the answers
        counted_s = 0.0
        while True:
            try:
                make_plan, trace, limit, ids, speeds = pickle.load(orders)
            except EOFError:
                return
            answer = _answer(make_plan, trace, limit, ids, Speeds(*speeds))
            cpu_s = time.process_time()
            pickle.dump(answer._replace(cpu_s=cpu_s - counted_s), answers)
            counted_s = cpu_s
            try:
                answers.flush()
            except BrokenPipeError:
                os._exit(0)  # nobody is there any more


def _answer(make_plan: MakePlan, trace: Trace, limit: int, ids: Mapping[PageId, int], speeds: Speeds) -> Answer:
    try:
        plan = make_plan(trace, limit, ids, speeds)
    except Exception:
        return Answer(0.0, traceback.format_exc())
    return Answer(
        0.0,
        "",
        plan.evicts,
        plan.fetches,
        plan.away,
        dict(plan.known),
        plan.recomputations,
        plan.waits_for_evictions,
    )
