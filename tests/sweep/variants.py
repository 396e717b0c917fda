"""The three ways to run a case, and what is compared."""

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import torch_lms
from tests.sweep.cases import Case
from tests.sweep.exceptions import SHARED_UNSAID, UNINITIALIZED
from tests.watcher import Watcher
from torch_lms.capture.tensors import tensors_among

_MIN_LIMIT = 64
"""Bytes of a session whose smallest page has 1, from which on operations are cut."""

Outcomes = list[list[str]]
"""For each attempt, a fingerprint of each leaf of its result, or the type of the error that it raised."""


@dataclass(slots=True)
class Verdict:
    """What became of a case.

    Attributes:
        attempts: how many were compared.
        raised: how many of them raised an error, the same in each way.
        evictions: pages that left the device meanwhile.
        in_pieces: operations that ran in pieces.
        state: "equal", "excluded", "unrepeatable", "mode" (equals an empty mode only), "differs" or "crashed".
        detail: what differed first.
        undeclared: operators that wrote or shared an argument without their schema or our lists saying so.
    """

    attempts: int = 0
    raised: int = 0
    evictions: int = 0
    in_pieces: int = 0
    state: str = "equal"
    detail: str = ""
    undeclared: list[str] = field(default_factory=list)


def judge(case: Case, in_pieces: bool = False) -> Verdict:
    """Run ``case`` all three ways and compare.

    Args:
        in_pieces: whether the limit is the size of the largest result, so that operations on such run in pieces. Else
            it is 0, so that all is moved, and nothing cut.
    """
    if case.name in UNINITIALIZED:
        return Verdict(state="excluded", detail=UNINITIALIZED[case.name])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = _run(case)
        plain = fingerprints(results, any_nan=in_pieces)
        limit = max([_MIN_LIMIT, *map(_nbytes, tree_leaves(results))]) if in_pieces else 0
        with Watcher() as watcher:
            looked_at = _run(case)
        looked_at_prints = fingerprints(looked_at, any_nan=in_pieces)
        with torch_lms.session(limit=limit, min_size=1) as lms:
            results = _run(case, prepare=lms.reclaim)
            lms.validate()
            stats = lms.stats()
        paged = fingerprints(results, any_nan=in_pieces)
        raised = sum(any(print.startswith("raised ") for print in prints) for prints in plain)
        verdict = Verdict(
            len(plain),
            raised,
            stats.evictions,
            stats.in_pieces,
            undeclared=sorted({*watcher.undeclared_writes, *(watcher.undeclared_sharing - SHARED_UNSAID.keys())}),
        )
        if paged == plain:
            return verdict
        verdict.detail = _first_difference(plain, paged)
        if fingerprints(_run(case), any_nan=in_pieces) != plain:
            verdict.state = "unrepeatable"
        else:
            verdict.state = "mode" if paged == looked_at_prints else "differs"
        return verdict


def _run(case: Case, prepare: Callable[[], None] = lambda: None) -> list[list[Any]]:
    """The leaves of each attempt's result."""
    results = []
    for attempt in case.attempts():
        prepare()
        try:
            results.append([_detached(leaf) for leaf in tree_leaves(attempt())])
        except Exception as error:
            results.append([f"raised {type(error).__name__}"])
    return results


def _nbytes(leaf: Any) -> int:
    is_strided = isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and not leaf.is_nested
    return leaf.nbytes if is_strided else 0


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf


def fingerprints(results: list[list[Any]], any_nan: bool = False) -> Outcomes:
    """Of every leaf of every result.

    Args:
        any_nan: whether what is no number is the same, whatever else its bits say: pieces promise no more.
    """
    return [[_fingerprint(_with_one_nan(leaf) if any_nan else leaf) for leaf in leaves] for leaves in results]


def _with_one_nan(leaf: Any) -> Any:
    is_floating = isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and leaf.is_floating_point()
    return leaf.masked_fill(leaf.isnan(), torch.nan) if is_floating and not leaf.is_nested else leaf


def _fingerprint(leaf: Any) -> str:
    if not isinstance(leaf, torch.Tensor):
        return repr(leaf)
    head = f"{leaf.dtype} {tuple(leaf.shape) if not leaf.is_nested else ''} {leaf.layout}"
    if leaf.is_nested:
        return " ".join([head, *map(_fingerprint, leaf.unbind())])
    if leaf.is_quantized:
        return f"{head} {leaf.qscheme()} {_fingerprint(leaf.int_repr())}"
    if leaf.layout is not torch.strided:
        return " ".join([head, *map(_fingerprint, tensors_among([leaf]))])
    if leaf.device.type != "cpu":
        return head
    dense = leaf.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    raw = dense.reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{head} {leaf.stride()} {hashlib.sha1(raw).hexdigest()}"


def _first_difference(plain: Outcomes, paged: Outcomes) -> str:
    if len(plain) != len(paged):
        return f"{len(plain)} attempts, {len(paged)} paged"
    number = next(n for n, (a, b) in enumerate(zip(plain, paged, strict=True)) if a != b)
    return f"attempt {number}: {plain[number]} became {paged[number]}"
