"""What others do, as plans: to be simulated beside ours.

Facts are from the papers and documents of TensorFlow LMS and of PyTorch.

``demand``, IBM's LMS for PyTorch 1.1, has no plan: see ``FirstIn``. Its LMS for TensorFlow 2 is no rival, but a policy
that also runs: see ``tflms``.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch_lms.planner.tflms import plan_of, saved_gaps
from torch_lms.policy import Plan, Policy, View
from torch_lms.residency import Page
from torch_lms.trace import Trace


class FirstIn(Policy):
    """PyTorch LMS 1.1: when memory is asked for, and not before, the page goes that has been inactive longest."""

    @property
    def name(self) -> str:
        return "demand"

    def victims(self, view: View) -> Iterator[Page]:
        yield from sorted((*view.clean.values(), *view.dirty.values()), key=lambda page: page.last_use)


@dataclass(frozen=True)
class Rival:
    """A way in which others move tensors.

    Attributes:
        plan: makes a plan for a step under a limit; None if they have none.
        is_blocking: whether whoever starts a copy waits for it.
        keeps_copies: whether a page that was fetched and not changed may be evicted without a copy.
        grows: whether the limit is whatever the operations so far have needed: memory is taken only if nothing can
            leave.
    """

    plan: Callable[[Trace, int], Plan] | None
    is_blocking: bool = False
    keeps_copies: bool = False
    grows: bool = False


def swap_all(trace: Trace, limit: int) -> Plan:
    """TFLMS 1 with n_tensors=-1 and lb=1: every tensor that the backward pass needs is evicted, and fetched one
    operation before it is needed. Weights stay.
    """
    return plan_of(trace, limit, saved_gaps(trace), ahead=1, known={})


def save_on_cpu(trace: Trace, limit: int) -> Plan:
    """``torch.autograd.graph.save_on_cpu``: every tensor that is saved for backward is copied at once, and copied back
    when it is needed. The program waits for both.
    """
    return plan_of(trace, limit, saved_gaps(trace), ahead=0, known={})


RIVALS = {
    "demand": Rival(plan=None, is_blocking=True, grows=True),
    "swap-all": Rival(swap_all),
    "save_on_cpu": Rival(save_on_cpu, is_blocking=True),
}
