"""Steps made for tests, by hand and by chance."""

import random
from collections.abc import Sequence
from typing import NamedTuple

from torch_lms.trace import Trace, TracedOp, TracedPage


class Op(NamedTuple):
    """``makes`` from ``takes``, and writes ``writes`` of these."""

    takes: Sequence[int]
    makes: Sequence[int] = ()
    writes: Sequence[int] = ()
    is_repeatable: bool = True


def traced(ops: Sequence[Op], constants: Sequence[int] = (0,), nbytes: int = 10) -> Trace:
    """A step; pages that are ``constants`` live before and after, each other from its first use to its last."""
    uses = [{*op.takes, *op.makes} for op in ops]
    count = 1 + max(page for used in uses for page in used)
    pages = []
    for page in range(count):
        at = [number for number, used in enumerate(uses) if page in used]
        if page in constants:
            pages.append(TracedPage(nbytes, -1, len(ops), "", page))
        else:
            pages.append(TracedPage(nbytes, at[0], at[-1]))
    return Trace(
        tuple(pages),
        tuple(
            TracedOp("op", tuple(o.takes), tuple(o.writes), tuple(o.makes), nbytes * len(o.makes), 1.0, o.is_repeatable)
            for o in ops
        ),
    )


THERE_AND_BACK = traced([Op([0], [1]), Op([0], [2]), Op([0]), Op([2]), Op([1])], nbytes=10)
"""Five operations of a second each on pages of 10 bytes; three pages are alive, but two are enough for each."""


def training(sizes: list[int], weights: list[int]) -> Trace:
    """A chain of layers: forward, backward (which needs the layer's input and weight), update of every weight."""
    count = len(sizes) - 1
    pages = [TracedPage(nbytes, -1, 0, successor=n) for n, nbytes in enumerate(weights)]
    ops: list[TracedOp] = []
    inputs = [len(pages)]
    pages.append(TracedPage(sizes[0], -1, 0))
    for n in range(count):
        pages.append(TracedPage(sizes[n + 1], len(ops), 0))
        inputs.append(len(pages) - 1)
        ops.append(TracedOp("forward", (n, inputs[n]), (), (inputs[n + 1],), sizes[n + 1], 1.0))
    slopes = [inputs[-1]]
    last_use = {}
    for n in reversed(range(count)):
        pages.append(TracedPage(sizes[n], len(ops), 0))
        pages.append(TracedPage(weights[n], len(ops), 0))
        made = len(pages) - 2
        ops.append(TracedOp("backward", (n, inputs[n], slopes[-1]), (), (made, made + 1), sizes[n] + weights[n], 2.0))
        last_use[inputs[n]] = last_use[slopes[-1]] = len(ops) - 1
        ops.append(TracedOp("update", (n, made + 1), (n,), (), 0, 0.1))
        last_use[made + 1] = len(ops) - 1
        last_use[made] = len(ops) - 1
        slopes.append(made)
    after = len(ops)
    return Trace(
        tuple(p._replace(dead=after if n < count else last_use.get(n, after - 1)) for n, p in enumerate(pages)),
        tuple(ops),
    )


def random_training(seed: int) -> Trace:
    dice = random.Random(seed)
    count = dice.randint(4, 12)
    return training([dice.randint(5, 60) for _ in range(count + 1)], [dice.randint(1, 40) for _ in range(count)])


def repeatable(trace: Trace) -> Trace:
    """The same step, of which all but the updates can be repeated."""
    return Trace(trace.pages, tuple(op._replace(is_repeatable=op.name != "update") for op in trace.ops))


def handing_on(seed: int) -> Trace:
    """A training that keeps an activation, which its next step needs later than this one uses it, and then computes
    anew: as a module keeps its weight that is computed from others.
    """
    dice = random.Random(seed)
    trace = repeatable(random_training(seed))
    end = len(trace.ops)
    made = [number for number, page in enumerate(trace.pages) if page.born >= 0]
    kept = dice.choice(made[: len(made) // 2])
    last_use = trace.uses[kept][-1]
    old = len(trace.pages)
    pages = [page._replace(dead=end, successor=old) if n == kept else page for n, page in enumerate(trace.pages)]
    later = dice.randint(min(last_use + 1, end - 1), end - 1)
    pages.append(TracedPage(trace.pages[kept].nbytes, -1, later))
    ops = [op._replace(pages=(*op.pages, old)) if n == later else op for n, op in enumerate(trace.ops)]
    return Trace(tuple(pages), tuple(ops))
