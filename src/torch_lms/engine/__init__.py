"""The engine of one device: events in, on one side; on the other, a backend that carries out what they call for."""

from torch_lms.engine.backend import Backend, Mark, Spent
from torch_lms.engine.engine import Engine, Halt, Operation, drive
from torch_lms.engine.plan_cache import EndedStep, Kind, OnePlan, PlanCache, Plans
from torch_lms.engine.planning import (
    NATIVE_REPEAT_S,
    REPEAT_S,
    MadePlan,
    MakePlan,
    Planner,
    PlanOrder,
    PlansAtOnce,
    Speeds,
)
from torch_lms.engine.step_record import Journal, StepRecord, Stretch

__all__ = [
    "NATIVE_REPEAT_S",
    "REPEAT_S",
    "Backend",
    "EndedStep",
    "Engine",
    "Halt",
    "Journal",
    "Kind",
    "MadePlan",
    "MakePlan",
    "Mark",
    "OnePlan",
    "Operation",
    "PlanCache",
    "PlanOrder",
    "Planner",
    "Plans",
    "PlansAtOnce",
    "Speeds",
    "Spent",
    "StepRecord",
    "Stretch",
    "drive",
]
