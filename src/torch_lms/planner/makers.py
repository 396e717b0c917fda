"""Who makes the plans of a policy: a function from a step, a limit and the link's speeds to a plan."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch_lms.engine import MakePlan
from torch_lms.errors import UsageError
from torch_lms.planner.plan import make_plan, quick_plan
from torch_lms.planner.tflms import make_tflms_plan
from torch_lms.planner.tunables import tunables_of

QUICK: Mapping[MakePlan, MakePlan] = {make_plan: quick_plan}
"""The makers that have a quick way, and that."""

PLANNED = ("planned", "tflms2")
"""The policies that follow plans."""


def plan_maker(policy: str, tune: Mapping[str, Any] | None = None) -> MakePlan:
    """The maker of plans of ``policy``, which is ours unless it is "tflms2". It can be pickled.

    Args:
        policy: the policy.
        tune: tunables of "tflms2", by their names.

    Raises:
        UsageError: the policy has no tunables, or not these.
    """
    if policy == "tflms2":
        return partial(make_tflms_plan, tunables=tunables_of(tune or {}))
    if tune:
        raise UsageError(f'tune is for the policy "tflms2", which alone has tunables; got the policy {policy!r}')
    return make_plan
