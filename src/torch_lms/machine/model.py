"""A machine in figures: its GPUs, the links that feed them, and what they share. Sources are in docs/machines.md."""

import math
from dataclasses import dataclass, replace

from torch_lms.errors import UsageError


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One GPU.

    ``memory_bytes`` is what the driver reports as total. Of that, no tensor can have ``reserved_bytes``: what the
    driver keeps, and what CUDA's context and the libraries' kernels and handles take. Memory speed and FLOP/s are the
    data sheet's peaks: FLOP/s of dense matrices, on tensor cores for tf32, fp16 and bf16 (None: the GPU's have no such
    type). ``launch_s`` is the least time between two kernels of an eager program; the host sets it.
    """

    name: str
    memory_bytes: int
    reserved_bytes: int
    memory_bytes_per_s: float
    fp32_flop_per_s: float
    tf32_flop_per_s: float | None
    fp16_flop_per_s: float
    bf16_flop_per_s: float | None
    fp64_flop_per_s: float
    launch_s: float

    def __post_init__(self) -> None:
        _positive(
            memory_bytes=self.memory_bytes,
            memory_bytes_per_s=self.memory_bytes_per_s,
            fp32_flop_per_s=self.fp32_flop_per_s,
            tf32_flop_per_s=self.tf32_flop_per_s,
            fp16_flop_per_s=self.fp16_flop_per_s,
            bf16_flop_per_s=self.bf16_flop_per_s,
            fp64_flop_per_s=self.fp64_flop_per_s,
            launch_s=self.launch_s,
        )
        _at_most("reserved_bytes", self.reserved_bytes, self.memory_bytes, "memory_bytes", least=0)

    @property
    def usable_bytes(self) -> int:
        """The bytes that tensors can have."""
        return self.memory_bytes - self.reserved_bytes


@dataclass(frozen=True, slots=True)
class Link:
    """A way between host memory and a GPU, or between host memory and a switch.

    ``nominal_bytes_per_s`` is the data sheet's figure for each direction. The others are what copies of page-locked
    memory reach: in each direction alone, and summed over both while both are busy (None: the sum of the two).
    """

    nominal_bytes_per_s: float
    to_device_bytes_per_s: float
    to_host_bytes_per_s: float
    duplex_bytes_per_s: float | None
    latency_s: float

    def __post_init__(self) -> None:
        _positive(nominal_bytes_per_s=self.nominal_bytes_per_s, latency_s=self.latency_s)
        one_way = (self.to_device_bytes_per_s, self.to_host_bytes_per_s)
        for name, speed in zip(("to_device_bytes_per_s", "to_host_bytes_per_s"), one_way, strict=True):
            _positive(**{name: speed})
            _at_most(name, speed, self.nominal_bytes_per_s, "nominal_bytes_per_s")
        if self.duplex_bytes_per_s is not None:
            _at_most(
                "duplex_bytes_per_s", self.duplex_bytes_per_s, sum(one_way), "both directions' sum", least=max(one_way)
            )

    @property
    def both_bytes_per_s(self) -> float:
        """Bytes per second of both directions together while both are busy."""
        if self.duplex_bytes_per_s is not None:
            return self.duplex_bytes_per_s
        return self.to_device_bytes_per_s + self.to_host_bytes_per_s

    def limited(self, to_device_bytes_per_s: float, to_host_bytes_per_s: float, both_bytes_per_s: float) -> "Link":
        """This link with something on its way that is no faster than these speeds."""
        to_device = min(self.to_device_bytes_per_s, to_device_bytes_per_s)
        to_host = min(self.to_host_bytes_per_s, to_host_bytes_per_s)
        both = min(self.both_bytes_per_s, both_bytes_per_s)
        return replace(
            self,
            to_device_bytes_per_s=to_device,
            to_host_bytes_per_s=to_host,
            duplex_bytes_per_s=both if both < to_device + to_host else None,
        )


@dataclass(frozen=True, slots=True)
class Switch:
    """``gpus`` consecutive GPUs whose links end in one switch, with one ``uplink`` to the socket."""

    gpus: int
    uplink: Link

    def __post_init__(self) -> None:
        _count("gpus", self.gpus, least=2)


@dataclass(frozen=True, slots=True)
class Disk:
    """The tier below host memory; all processes share it. Speeds are those of long sequential transfers."""

    write_bytes_per_s: float
    read_bytes_per_s: float
    nbytes: int

    def __post_init__(self) -> None:
        _positive(write_bytes_per_s=self.write_bytes_per_s, read_bytes_per_s=self.read_bytes_per_s, nbytes=self.nbytes)


@dataclass(frozen=True, slots=True)
class Machine:
    """``gpus`` equal GPUs, numbered socket by socket; rank i of a program runs on GPU i, with memory of its own socket.

    ``host_bytes`` is the whole machine's; ``host_bytes_per_s`` is what the memory of one socket reaches, reads and
    writes together. Between GPUs of one socket, each direction reaches ``peer_bytes_per_s``, between GPUs of different
    sockets ``far_peer_bytes_per_s`` (None: they exchange through the host). ``switch`` is None where each GPU has a
    way to the socket of its own, ``disk`` where there is nothing to spill to. ``link`` is None where the processor
    computes in the host's own memory, so that only the disk is below it.
    """

    name: str
    title: str
    gpus: int
    accelerator: Accelerator
    link: Link | None
    switch: Switch | None
    sockets: int
    host_bytes: int
    host_bytes_per_s: float
    peer_bytes_per_s: float | None
    far_peer_bytes_per_s: float | None
    disk: Disk | None

    def __post_init__(self) -> None:
        _count("gpus", self.gpus)
        _count("sockets", self.sockets)
        _positive(
            host_bytes=self.host_bytes,
            host_bytes_per_s=self.host_bytes_per_s,
            peer_bytes_per_s=self.peer_bytes_per_s,
            far_peer_bytes_per_s=self.far_peer_bytes_per_s,
        )
        if self.gpus % self.sockets:
            raise UsageError(f"gpus must be a multiple of sockets ({self.sockets}); got {self.gpus}")
        if self.switch is not None and self.gpus_per_socket % self.switch.gpus:
            raise UsageError(
                f"switch.gpus must divide the {self.gpus_per_socket} GPUs of a socket; got {self.switch.gpus}"
            )

    @property
    def gpus_per_socket(self) -> int:
        return self.gpus // self.sockets

    def links(self, ranks: int) -> tuple[Link, ...]:
        """What each of ``ranks`` has of its link while all of them copy, in one direction or in both.

        It is the least of its own link, an equal share of its switch's uplink, and an equal share of its socket's
        memory, which every byte of either direction crosses once.

        Raises:
            UsageError: the machine has fewer GPUs than ``ranks``.
        """
        self._check_ranks(ranks, least=1)
        return tuple(self._link(gpu, ranks) for gpu in range(ranks))

    def ring_bytes_per_s(self, ranks: int) -> float:
        """What each direction of the slowest hop reaches while ``ranks`` pass data around a ring, all at once.

        A hop through the host is a copy out and a copy in by each rank at the same time.

        Raises:
            UsageError: fewer than two ranks, or more than the machine has GPUs.
        """
        self._check_ranks(ranks, least=2)
        hops = [self.peer_bytes_per_s]
        if ranks > self.gpus_per_socket:
            hops.append(self.far_peer_bytes_per_s)
        return min(self._through_host(ranks) if hop is None else hop for hop in hops)

    def _through_host(self, ranks: int) -> float:
        return min(
            min(link.to_device_bytes_per_s, link.to_host_bytes_per_s, link.both_bytes_per_s / 2)
            for link in self.links(ranks)
        )

    def _link(self, gpu: int, ranks: int) -> Link:
        if self.link is None:
            raise UsageError(f"{self.name} has no link between host and device: it computes in the host's memory")
        memory = self.host_bytes_per_s / _together(gpu, ranks, self.gpus_per_socket)
        link = self.link.limited(memory, memory, memory)
        if self.switch is None:
            return link
        uplink = self.switch.uplink
        sharing = _together(gpu, ranks, self.switch.gpus)
        return link.limited(
            uplink.to_device_bytes_per_s / sharing,
            uplink.to_host_bytes_per_s / sharing,
            uplink.both_bytes_per_s / sharing,
        )

    def _check_ranks(self, ranks: int, least: int) -> None:
        if not least <= ranks <= self.gpus:
            raise UsageError(f"{self.name} has {self.gpus} GPU(s): give {least} to {self.gpus} ranks; got {ranks}")


def _together(gpu: int, ranks: int, group: int) -> int:
    """How many of ``ranks`` are on the GPUs of ``gpu``'s group; groups are of consecutive GPUs."""
    first = gpu - gpu % group
    return min(first + group, ranks) - first


def _positive(**figures: float | None) -> None:
    for name, value in figures.items():
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"{name} must be a positive number; got {value!r}")


def _count(name: str, value: int, least: int = 1) -> None:
    if value < least:
        raise UsageError(f"{name} must be a whole number of at least {least}; got {value!r}")


def _at_most(name: str, value: float, most: float, what: str, least: float = 0) -> None:
    if not least <= value <= most:
        raise UsageError(f"{name} must be from {least:g} to {most:g} ({what}); got {value!r}")
