"""What users call. One session at a time in a process."""

import logging
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ContextDecorator
from dataclasses import replace
from typing import Any, TypeVar

import torch

from torch_lms.engine import Kind
from torch_lms.errors import SessionError, UnsupportedError, UsageError
from torch_lms.live import Reading, Server
from torch_lms.native import Native, load
from torch_lms.policy import Plan
from torch_lms.runtime import attach as threads
from torch_lms.runtime import outputs
from torch_lms.runtime.accelerator import AcceleratorDevice
from torch_lms.runtime.collecting import traffic_ratio
from torch_lms.runtime.cpu import CpuExecutor
from torch_lms.runtime.executor import Executor
from torch_lms.runtime.interposer import refuse_inside_other_modes
from torch_lms.runtime.native_cpu import NativeCpuExecutor
from torch_lms.runtime.native_streams import NativeAcceleratorDevice, NativeStreamExecutor
from torch_lms.runtime.options import Options, check
from torch_lms.runtime.readings import take_reading
from torch_lms.runtime.session import Session
from torch_lms.runtime.stats import Stats, Step
from torch_lms.runtime.step_times import StepTimes
from torch_lms.runtime.steps import StepHooks
from torch_lms.runtime.streams import StreamExecutor
from torch_lms.runtime.torch_version import warn_if_untested
from torch_lms.stores.disk import DiskStore
from torch_lms.stores.host import HostStore
from torch_lms.timeline import Timeline
from torch_lms.trace import Trace

_Found = TypeVar("_Found")

_log = logging.getLogger("torch_lms")


class Lms:
    """A session that is on, as ``torch_lms.session()`` gives it.

    Attributes:
        given: the arguments of ``enable``.
    """

    def __init__(self, options: Options, given: dict[str, Any]) -> None:
        may_be_watched = _may_be_watched()
        self.given = given
        found = _interposer()
        self._session = Session(options, lambda device: _new_executor(device, options, found.native), found)
        self._step_times = StepTimes()
        session = self._session
        self._steps = StepHooks(self.step, session.adopt, lambda: session.uses, session.suspecting, session.limit_of)
        self._threads = threads.ThreadHook(self._session.interposer)
        self._steps.install()
        self._threads.install()
        self.attach()
        if older := threads.older():
            _log.info(
                "these threads run already, and take no part unless they call torch_lms.attach(): %s. Should one touch "
                "a tensor that is away, it crashes or raises",
                ", ".join(older),
            )
        self._server = _server(self.reading) if may_be_watched else None

    def stats(self, *, floor: bool = False) -> Stats:
        """What happened so far.

        Args:
            floor: compare what moved with the least that had to, too (``Stats.traffic_ratio``): a linear program, which
                takes seconds for steps of thousands of operations. Needs scipy.
        """
        stats = replace(self._session.stats(), held_outputs=outputs.held())
        return _with_floor(stats, self._session.planned_kinds() if floor else None)

    def reading(self) -> Reading | None:
        """What is shown of it while it runs; None once it has ended. Any thread may ask."""
        with self._session.lock:
            return take_reading(self._session, self._step_times) if self._session.active else None

    def trace(self) -> Trace:
        """What the last step did in which room was short (``torch_lms.trace.save`` writes it to a file).

        Raises:
            SessionError: there was none, or the session is not planned.
        """
        return _recorded(self._session.last_step.trace)

    def plan(self) -> Plan:
        """The plan that was made or followed last. Errors as for ``trace``."""
        return _recorded(self._session.last_step.plan)

    def timeline(self) -> Timeline:
        """When what happened in the last step in which room was short (``torch_lms.report.perfetto`` makes JSON of it
        for ui.perfetto.dev). Errors as for ``trace``.
        """
        return _recorded(self._session.last_step.timeline)

    def reset_stats(self) -> None:
        """Start counting anew."""
        self._session.reset_stats()

    def step(self) -> None:
        """A step ends here (otherwise boundaries are found: see N14)."""
        self._session.step()
        self._step_times.ended()
        self._steps.step_ended()
        self._session.deliver()  # an interrupt that came meanwhile: there may be no operation for a while

    def reclaim(self) -> None:
        """Evict whatever is not in use."""
        self._session.reclaim()

    def attach(self) -> None:
        """The calling thread takes part. Threads started during the session do so by themselves."""
        self._session.interposer.attach()

    def validate(self) -> None:
        """Check every invariant of the session's books (for tests and bug reports).

        Raises:
            InvariantError: one does not hold.
        """
        self._session.validate()

    def _stop(self) -> None:
        self._steps.settle()
        self._session.close()
        self._let_go()

    def _let_go(self) -> None:
        if self._server is not None:
            self._server.close()
        self._threads.uninstall()
        self._steps.uninstall()
        self._session.interposer.detach()


_running: Lms | None = None
_adoptable: frozenset[str] | None = None
"""A session started for a script may be adopted, once, by the script's own ``enable``: the settings named here were
given to us and stay; the others are the script's.
"""
_last_stats, _last_step = Stats(), Step()
_last_kinds: list[Kind] = []


def enable(
    limit: int | str = "auto",
    min_size: int | str = "1MiB",
    host_limit: int | str = "auto",
    spill_dir: str | os.PathLike[str] | None = None,
    policy: str = "planned",
    recompute: bool = True,
    *,
    exact: bool = True,
    device: str | torch.device = "auto",
    tune: Mapping[str, Any] | None = None,
) -> None:
    """Turn Large Model Support on for this process, until ``disable()``.

    If it is on already, ``limit`` and ``min_size`` are changed, and the rest must be as it was.

    Args:
        limit: bytes of device memory that tensors may occupy: an int, a string ("12GB" = 12e9, "11.5GiB", "80%" of the
            device), or "auto": what the device can hold, so that nothing moves until it must. Soft for the operation
            that runs: 0 works, and evicts everything not in use.
        min_size: smaller storages never move.
        host_limit: page-locked host memory to use before the disk. "auto": half of what is free.
        spill_dir: directory for the spill file. None: $TORCH_LMS_SPILL_DIR, else the first of $TMPDIR, /var/tmp and
            /tmp that is on a disk.
        policy: "planned"; "reactive"; or "tflms2", plans by the rules of IBM's LMS for TensorFlow (docs/tflms.md).
        recompute: whether a planned session may recompute tensors instead of moving them.
        exact: True: what alone exceeds the limit runs in pieces only if that is seen to give the same bits. False:
            also if they may be rounded in another way; ``stats().inexact`` names such operators.
        device: "auto": the accelerator if there is one, else the CPU.
        tune: tunables of the policy "tflms2", by IBM's names. Those not given are chosen for each kind of step.

    Raises:
        UsageError: an argument that cannot be obeyed.
        SessionError: it is on already, with other settings that cannot be changed, or this thread is inside another
            dispatch mode.
    """
    given = dict(locals())
    refuse_inside_other_modes()
    if _running is not None and _adoptable is None:
        _change(given)
    else:
        _start(given)


class _Block(ContextDecorator, AbstractContextManager[Lms]):
    """A ``with`` block, or a function, inside which LMS is on. It may be entered time and again."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._given = given
        self._begun: Lms | None = None

    def __enter__(self) -> Lms:
        self._begun = _start(self._given)
        return self._begun

    def __exit__(self, *_: object) -> None:
        begun, self._begun = self._begun, None
        # A generator that nobody ended is ended with the interpreter. The threads that copy have ended before it.
        if _running is begun and not sys.is_finalizing():
            disable()


def session(
    limit: int | str = "auto",
    min_size: int | str = "1MiB",
    host_limit: int | str = "auto",
    spill_dir: str | os.PathLike[str] | None = None,
    policy: str = "planned",
    recompute: bool = True,
    *,
    exact: bool = True,
    device: str | torch.device = "auto",
    tune: Mapping[str, Any] | None = None,
) -> _Block:
    """Large Model Support inside a ``with`` block. Arguments and errors as for ``enable``."""
    return _Block(dict(locals()))


def disable() -> None:
    """Turn it off. Everything comes back to the device first.

    Raises:
        SessionError: it is off.
        DeviceFullError: not everything fits on the device. Nothing is lost, and the session goes on.
    """
    global _running, _adoptable, _last_stats, _last_step, _last_kinds
    running = _required()
    stats, step = running.stats(), running._session.last_step
    kinds = running._session.planned_kinds()
    running._stop()
    _running, _adoptable, _last_stats, _last_step, _last_kinds = None, None, stats, step, kinds


def enable_for_script(**options: Any) -> Lms:
    """``enable``, for a script that is about to run and may enable LMS itself: then it adopts this session.

    What is not among ``options`` is the script's to choose.
    """
    global _adoptable
    enable(**options)
    _adoptable = frozenset(options)
    return _required()


def is_enabled() -> bool:
    """Whether a session is on in this process."""
    return _running is not None


def is_fixed(setting: str) -> bool:
    """Whether the command line that started this session gave ``setting``: then a script's own does not count."""
    return _adoptable is not None and setting in _adoptable


def current_session() -> Session | None:
    """The session that is on, for ``torch_lms.compat``: it changes settings that ``enable`` fixes."""
    return _running._session if _running is not None else None


def stats(*, floor: bool = False) -> Stats:
    """Figures of the session that is on, else of the last one.

    Args:
        floor: as of ``Lms.stats``: fills in ``traffic_ratio``.
    """
    if _running is not None:
        return _running.stats(floor=floor)
    return _with_floor(_last_stats, _last_kinds if floor else None)


def reading() -> Reading | None:
    """What is shown of the session that is on while it runs; None if there is none."""
    return _running.reading() if _running is not None else None


def last_step() -> Step:
    """What is known of the last step of the session that is on, else of the last one."""
    return _running._session.last_step if _running is not None else _last_step


def reset_stats() -> None:
    """Start counting anew."""
    _required().reset_stats()


def step() -> None:
    """A training step ends here. Only needed where it is not found: see ``docs/design.md``, N14."""
    _required().step()


def reclaim() -> None:
    """Evict every page not in use, now."""
    _required().reclaim()


def attach() -> None:
    """The calling thread takes part in the session. Threads started while it is on do so by themselves."""
    _required().attach()


def pinned(tensor_or_module: Any) -> AbstractContextManager[None]:
    """Inside this ``with`` block a tensor, the tensors of a module, or of a list or dict of them, stay on the device.

    There, functions that LMS does not see may read and write them: those of a library that is called by ctypes, say.

    Raises:
        UsageError: there is no tensor in it.
        SessionError: no session is on.
    """
    return _required()._session.pinned(tensor_or_module)


def touched(*tensors: Any) -> None:
    """``tensors``, modules, or lists or dicts of them, have been written by what LMS does not see.

    Not needed for what operations write, kernels of Triton, and functions of pybind11's, nor inside ``pinned``. Without
    it the next eviction may bring back what a tensor was before.

    Raises:
        UsageError: there are none; or one is not on the device, or others are recomputed from it: pin it before.
        SessionError: no session is on.
    """
    _required()._session.touched(tensors)


def _with_floor(stats: Stats, kinds: list[Kind] | None) -> Stats:
    """``stats``, with ``traffic_ratio`` if the kinds of steps are given."""
    return stats if kinds is None else replace(stats, traffic_ratio=traffic_ratio(kinds))


def _recorded(found: _Found | None) -> _Found:
    if found is None:
        raise SessionError(
            "no step was recorded yet: room was never short, or the policy is not planned; lower the limit"
        )
    return found


def _change(given: dict[str, Any]) -> None:
    """Give the session that is on other settings."""
    running = _required()
    options = check(**given)
    changed = [name for name, value in given.items() if value != running.given[name]]
    fixed = [name for name in changed if name not in ("limit", "min_size")]
    if "limit" in changed and options.limit is None:
        fixed.append("limit")
    if fixed:
        now, asked = (", ".join(f"{name}={of[name]!r}" for name in fixed) for of in (running.given, given))
        raise SessionError(
            f"LMS is on already, with {now}, and cannot change to {asked}: say the same again, or call "
            "torch_lms.disable() first (only limit, to a number of bytes, and min_size can change)"
        )
    if "limit" in changed and options.limit is not None:
        running._session.set_limit(options.limit)
    if "min_size" in changed:
        running._session.set_min_size(options.min_size)
    running.given = given


def _start(given: dict[str, Any]) -> Lms:
    global _running, _adoptable
    options = check(**given)
    if _running is not None and _adoptable is not None:
        fixed, _adoptable = _adoptable, None
        _log.info("the script enables LMS itself, and adopts the session that was started for it")
        if "limit" not in fixed and options.limit is not None:
            _running._session.set_limit(options.limit)
        if "min_size" not in fixed:
            _running._session.set_min_size(options.min_size)
        if "policy" not in fixed and options.policy != _running._session.options.policy:
            _log.warning("this session's policy stays: to have the script's, give torch-lms run --policy and --tune")
        _running.given = given
        return _running
    if _running is not None:
        raise SessionError("LMS is on already, and a process has one session: call torch_lms.disable() first")
    warn_if_untested()
    _running = Lms(options, given)
    return _running


def _required() -> Lms:
    if _running is None:
        raise SessionError("LMS is off: call torch_lms.enable() first, or work inside `with torch_lms.session():`")
    return _running


def _interposer() -> load.Found:
    found = load.find()
    if found.native is None and found.is_surprising:
        load.say_once(found.reason)
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise UnsupportedError(
            "expected a Python whose threads run one at a time; this one is free-threaded, and LMS was not made for "
            "that. Start it with PYTHON_GIL=1, or have the native interposer (torch-lms doctor --build), with which "
            "Python does so by itself"
        )
    return found


def _may_be_watched() -> bool:
    """Whether the environment asks for a socket that ``torch-lms watch`` can connect to."""
    asked = os.environ.get("TORCH_LMS_WATCH", "0")
    if asked not in ("0", "1"):
        raise UsageError(f"TORCH_LMS_WATCH must be 1, to let other processes of this user watch, or 0; got {asked!r}")
    return asked == "1"


def _server(read: Callable[[], Reading | None]) -> Server | None:
    """None where no socket can be made: that keeps nobody from training."""
    try:
        return Server(read)
    except (OSError, UsageError) as error:
        _log.warning("nobody can watch this process, since its socket cannot be made: %s", error)
        return None


def _new_executor(device: torch.device, options: Options, native: Native | None) -> Executor:
    disk = DiskStore(options.spill_dir)
    if device.type == "cpu":
        return CpuExecutor(disk) if native is None else NativeCpuExecutor(disk, native)
    if native is None:
        accelerator = AcceleratorDevice(device)
        return StreamExecutor(accelerator, _new_host_store(options, accelerator), disk)
    with_lanes = NativeAcceleratorDevice(device, native)
    return NativeStreamExecutor(with_lanes, _new_host_store(options, with_lanes), disk)


def _new_host_store(options: Options, device: AcceleratorDevice) -> HostStore:
    return HostStore(options.host_limit, device.page_lock, works_ahead=True)


def _before_fork() -> None:
    if _running is not None:
        _running._session.before_fork()


def _after_fork_in_parent() -> None:
    if _running is not None:
        _running._session.after_fork_in_parent()


def _after_fork_in_child() -> None:
    global _running
    if _running is not None:
        running, _running = _running, None
        if running._server is not None:
            running._server.let_go()
        if not running._session.after_fork_in_child():
            running._let_go()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
