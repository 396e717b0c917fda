"""The exchange of gradients between ranks, as it lengthens a step of data-parallel training."""

from dataclasses import dataclass, replace

from torch_lms.machine import Machine
from torch_lms.timeline import Lane, Span, Timeline
from torch_lms.trace import Trace

_BUCKET_BYTES = 25 << 20
"""Gradients are exchanged by so many bytes at once (DistributedDataParallel's default)."""


@dataclass(frozen=True)
class Exchange:
    """An all-reduce of all gradients, around a ring.

    Attributes:
        nbytes: of the gradients of each rank; 0 if there is nothing to exchange.
        whole_s: seconds that it takes.
        exposed_s: seconds of it that the backward pass does not hide.
    """

    nbytes: int = 0
    whole_s: float = 0.0
    exposed_s: float = 0.0

    @classmethod
    def of(cls, work: Trace, machine: Machine, gpus: int, gradient_bytes: int) -> "Exchange":
        """The exchange between ``gpus`` ranks that take steps like ``work``.

        Raises:
            UsageError: the machine has not so many GPUs.
        """
        if gpus == 1:
            return cls()
        # A ring passes 2 (n - 1) / n of the bytes by each of its n ranks.
        byte_s = 2 * (gpus - 1) / gpus / machine.ring_bytes_per_s(gpus)
        whole_s = byte_s * gradient_bytes
        # It begins when the first bucket is full. The last bucket is exchanged when the backward pass is over.
        last_bucket_s = byte_s * min(gradient_bytes, _BUCKET_BYTES)
        backward_s = sum(op.seconds for op in work.ops if "backward" in op.name)
        return cls(gradient_bytes, whole_s, max(last_bucket_s, whole_s - backward_s))

    def shown_in(self, timeline: Timeline) -> Timeline:
        """The timeline of a step, and at its end the exchange."""
        if not self.nbytes:
            return timeline
        done_s = max(span.end_s for span in timeline.spans if span.lane is Lane.COMPUTE)
        end_s = done_s + self.exposed_s
        wait = Span(Lane.COMPUTE, "stall", done_s, end_s)
        exchange = Span(Lane.COLLECTIVE, "all-reduce", end_s - self.whole_s, end_s, self.nbytes)
        return replace(timeline, spans=(*timeline.spans, wait, exchange))
