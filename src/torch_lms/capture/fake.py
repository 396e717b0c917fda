"""A step traced on tensors without bytes: what it would do, and to which pages, before it is ever run."""

import inspect
import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeCopyMode,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from torch_lms.capture import split
from torch_lms.capture.as_on_cuda import AsOnCuda
from torch_lms.capture.registry import Entry, Registry, storage_nbytes
from torch_lms.capture.schema import OpInfo, describe
from torch_lms.capture.sized import sized
from torch_lms.capture.tensors import untyped_storage
from torch_lms.capture.work import work_of
from torch_lms.errors import UnsupportedError, UsageError
from torch_lms.trace import Living, Recorder, Trace, Work
from torch_lms.units import parse_bytes

Loss = Callable[[Any], torch.Tensor]
Inputs = tuple[Any, ...] | dict[str, Any]
NewOptimizer = Callable[..., torch.optim.Optimizer]

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_UNTOLD = (UnsupportedFakeTensorException, UnsupportedOperatorException)
_NOT_KNOWN = (DataDependentOutputException, DynamicOutputShapeException)
_BYTES_ASKED_FOR = ("data is not allocated yet", ".numpy() is not supported")
"""What PyTorch says where something other than an operator reads them."""

_DEVICES = ("cpu", "cuda")

_WHOLE = 256 << 20
"""Bytes up to which an operation is not cut."""

_CONSTANTS = frozenset(f"aten::{name}" for name in ("arange", "linspace", "full", "zeros", "ones", "eye"))
_MOST_CONSTANT = 1024
"""Elements up to which the values of what these operators make are known: programs take sizes and axes from them."""


def trace_step(
    fn_or_module: Callable[..., Any] | torch.nn.Module,
    inputs: Sequence[Any] | Mapping[str, Any] = (),
    optimizer: str | NewOptimizer | torch.optim.Optimizer | None = None,
    *,
    loss: Loss | None = None,
    device: str = "cpu",
    amp: torch.dtype | None = None,
    min_size: int | str = "1MiB",
) -> Trace:
    """What a step would do, without doing it: nothing is allocated, and no value is computed.

    With ``optimizer`` it is a training step: forward, loss, backward, update, gradients cleared, with the optimizer's
    state there from the start. Without, it is inference where a module is given; a function is run as it is, twice,
    and the second time counts, so it may as well train. Modules and tensors among ``inputs`` are replaced by copies
    without bytes; those that a function brings along are not, so give it its modules as arguments.

    Args:
        fn_or_module: called with ``inputs``.
        inputs: tensors, modules, or nests of them; a mapping for keyword arguments.
        optimizer: the name of one in ``torch.optim``, a class or function that takes the parameters, or an optimizer,
            of which class and settings are taken.
        loss: makes a scalar from what ``fn_or_module`` returned; default: the sum of the means of all floating-point
            tensors there.
        device: "cpu", or "cuda" for the operations that PyTorch would choose on a GPU.
        amp: type for autocast, or None.
        min_size: smaller storages are no pages.

    Returns:
        The trace; its operations say what work they have to do, and take no time.

    Raises:
        UsageError: the arguments make no sense, or a module's parameters were not among them.
        UnsupportedError: the step depends on values, which nobody knows before it runs.
    """
    if device not in _DEVICES:
        raise UsageError(f"device must be one of {', '.join(map(repr, _DEVICES))}; got {device!r}")
    mode = _mode_of((fn_or_module, inputs)) or FakeTensorMode(allow_non_fake_inputs=True)
    tracer = _Tracer(parse_bytes(min_size) if isinstance(min_size, str) else min_size, device)
    with _explained(), mode, ExitStack() as settings:
        arguments: Inputs = dict(inputs) if isinstance(inputs, Mapping) else tuple(inputs)
        target, given = without_bytes((fn_or_module, arguments), mode)
        if device == "cuda":
            settings.enter_context(AsOnCuda())
        if amp is not None:
            settings.enter_context(torch.autocast("cpu", dtype=amp))
        if optimizer is not None:
            return _trace_training(tracer, target, given, optimizer, loss, device)
        is_module = isinstance(target, torch.nn.Module)
        if is_module:
            settings.enter_context(torch.no_grad())
        for _ in range(1 if is_module else 2):
            with tracer.recording(_held(pytree.tree_leaves((target, given)))):
                _called(target, given)
        return tracer.trace


def _called(target: Callable[..., Any], inputs: Inputs) -> Any:
    return target(**inputs) if isinstance(inputs, dict) else target(*inputs)


def _mode_of(values: Any) -> FakeTensorMode | None:
    """In which the tensors among ``values`` were made that have no bytes already."""
    modes = [tensor.fake_mode for tensor in _held(pytree.tree_leaves(values)) if isinstance(tensor, FakeTensor)]
    return modes[0] if modes else None


def without_bytes(values: Any, mode: FakeTensorMode) -> Any:
    """Copies of ``values`` in which tensors have no bytes; those that have none already are taken as they are."""
    leaves, shape = pytree.tree_flatten(values)
    with FakeCopyMode(mode):
        copied: dict[int, Any] = {}
        return pytree.tree_unflatten([_without_bytes(leaf, copied) for leaf in leaves], shape)


def _without_bytes(leaf: Any, copied: dict[int, Any]) -> Any:
    if not isinstance(leaf, torch.Tensor | torch.nn.Module):
        return leaf
    held = _held([leaf])
    if held and all(isinstance(tensor, FakeTensor) for tensor in held):
        return leaf
    if id(leaf) not in copied:
        copied[id(leaf)] = deepcopy(leaf)
    return copied[id(leaf)]


def _held(leaves: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors among ``leaves``, and the parameters and buffers of modules there."""
    found: list[torch.Tensor] = []
    for leaf in leaves:
        if isinstance(leaf, torch.nn.Module):
            found += [*leaf.parameters(), *leaf.buffers()]
        elif isinstance(leaf, torch.Tensor):
            found.append(leaf)
    return found


def _trace_training(
    tracer: "_Tracer",
    target: Callable[..., Any],
    inputs: Inputs,
    optimizer: str | NewOptimizer | torch.optim.Optimizer,
    loss: Loss | None,
    device: str,
) -> Trace:
    leaves = pytree.tree_leaves((target, inputs))
    modules = [leaf for leaf in leaves if isinstance(leaf, torch.nn.Module)]
    parameters = list(dict.fromkeys(p for module in modules for p in module.parameters() if p.requires_grad))
    if not parameters:
        raise UsageError("a training step needs parameters: expected a module, or a function with a module in inputs")
    update = new_optimizer(optimizer, parameters, device)
    for parameter in parameters:  # a first update, in which the optimizer makes its state
        parameter.grad = torch.zeros_like(parameter)
    update.step()
    update.zero_grad()
    held = _held(leaves)
    for _ in range(2):
        with tracer.recording([*held, *pytree.tree_leaves(list(update.state.values()))]):
            used = _train_once(target, inputs, loss, update)
        idle = [parameter for parameter in update.state if id(parameter) not in used]
        if not idle:
            break
        for without_gradient in idle:  # and so without state
            del update.state[without_gradient]
    return tracer.trace


def _train_once(
    target: Callable[..., Any], inputs: Inputs, loss: Loss | None, update: torch.optim.Optimizer
) -> set[int]:
    """A step. Returns the ids of the parameters that had a gradient."""
    result = (loss or _mean)(_called(target, inputs))
    if not isinstance(result, torch.Tensor) or result.numel() != 1 or not result.requires_grad:
        raise UsageError(f"the loss must be a scalar tensor that requires gradients; got {_shown(result)}")
    result.backward()
    del result
    used = {id(p) for group in update.param_groups for p in group["params"] if p.grad is not None}
    update.step()
    update.zero_grad()
    return used


def _mean(outputs: Any) -> torch.Tensor:
    means = [leaf.mean() for leaf in pytree.tree_leaves(outputs) if _is_floating(leaf)]
    if not means:
        raise UsageError(f"expected floating-point tensors to make a loss of, or loss=; got {_shown(outputs)}")
    return torch.stack([mean.float() for mean in means]).sum()


def _is_floating(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}, type {value.dtype}, requires_grad={value.requires_grad}"
    return type(value).__name__


def new_optimizer(
    given: str | NewOptimizer | torch.optim.Optimizer, parameters: list[torch.nn.Parameter], device: str
) -> torch.optim.Optimizer:
    """On ``parameters``. On a GPU PyTorch prefers operations on lists."""
    settings: dict[str, Any] = {}
    make: Any = given
    if isinstance(given, str):
        known = {name.lower(): kind for name, kind in vars(torch.optim).items() if inspect.isclass(kind)}
        make = known.get(given.lower())
        if make is None or not issubclass(make, torch.optim.Optimizer):
            names = ", ".join(sorted(n for n, k in known.items() if issubclass(k, torch.optim.Optimizer)))
            raise UsageError(f"optimizer must be one of torch.optim, any case ({names}); got {given!r}")
    elif isinstance(given, torch.optim.Optimizer):
        make, settings = type(given), dict(given.defaults)
    if make is torch.optim.SGD and isinstance(given, str):
        settings = {"lr": 0.01, "momentum": 0.9}
    made: torch.optim.Optimizer = make(parameters, **settings)
    for group in made.param_groups if device == "cuda" else ():
        if group.get("foreach", False) is None and not group.get("fused"):
            group["foreach"] = True
    return made


class _Tracer(TorchDispatchMode):
    """Writes down what operations do to pages."""

    supports_higher_order_operators = True

    def __init__(self, min_size: int, device: str) -> None:
        super().__init__()
        self._min_size = max(1, min_size)
        self._device = device
        self._registry = Registry()
        self._whole = self._in_parts = Recorder(())
        self.trace = Trace((), ())

    @contextmanager
    def recording(self, living: Iterable[Any]) -> Iterator[None]:
        """What is done inside becomes ``trace``. ``living``: the tensors that are there from the start."""
        storages = {
            id(s): s for tensor in living if isinstance(tensor, torch.Tensor) for s in [untyped_storage(tensor)]
        }
        pages = [entry for storage in storages.values() if (entry := self._entry(storage)) is not None]
        self._whole, self._in_parts = (Recorder(Living(page.page, page.nbytes) for page in pages) for _ in range(2))
        with self:
            yield
        self._bury()
        for recorder in (self._whole, self._in_parts):
            recorder.finish(0.0)
        self.trace = replace(self._whole.trace(), cut=self._in_parts.trace())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func`` on tensors without bytes, and write it down."""
        kwargs = kwargs or {}
        if getattr(func, "namespace", "") in ("prim", "profiler"):
            return func(*args, **kwargs)
        info = describe(func)
        if info.composite:
            with self:
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        _refuse_strangers(args, kwargs)
        if info.view:
            return func(*args, **kwargs)
        self._bury()
        return self._recorded(info, func, args, kwargs)

    def _recorded(self, info: OpInfo, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        whole = split.Part(args, kwargs)
        if self._nbytes((args, kwargs)) <= _WHOLE:
            result = _with_values(sized(func, info, args, kwargs, self._device), info, func, args, kwargs)
            self._write((self._whole, self._in_parts), info, func, whole, result)
            return result
        parts, slices = split.parts(info, args, kwargs, self._nbytes, _WHOLE), split.slices(info, args)
        results = [sized(func, info, part.args, part.kwargs, self._device) for part in parts]
        result = results[0] if len(parts) == 1 else split.join(info, results)
        self._write((self._whole,), info, func, whole, result)
        if info.name == split.CAT:
            self._write_cat(info, func, args[0], result)
        elif slices:
            self._write_on_copies(info, func, args, slices, result)
        else:
            for part, its in zip(parts, results, strict=True):
                self._write((self._in_parts,), info, func, part, its)
        return result

    def _nbytes(self, values: Any) -> int:
        return sum(page.nbytes for page in self._pages(values))

    def _write(self, recorders: tuple[Recorder, ...], info: OpInfo, func: Any, part: split.Part, result: Any) -> None:
        args, kwargs = part.args, part.kwargs
        given = [value for position, value in enumerate(args) if position != part.shape_only]
        used = self._pages((given, kwargs))
        made = [page for page in self._pages(result) if page not in used]
        if not used and not made:
            for recorder in recorders:
                recorder.small()
            return
        work = work_of(info, func, args, kwargs, result)
        written = [page.page for page in self._pages(info.written_args(args, kwargs))]
        for recorder in recorders:
            _begins(recorder, info, used, made, work)
            recorder.wrote(written)

    def _write_on_copies(
        self, info: OpInfo, func: Any, args: tuple[Any, ...], slices: tuple[int, ...], result: Any
    ) -> None:
        """After each slice was copied out of its page."""
        copies, clone = split.with_copies(args, slices), torch.ops.aten.clone.default
        for position in slices:
            self._write((self._in_parts,), describe(clone), clone, split.Part((args[position],), {}), copies[position])
        self._write((self._in_parts,), info, func, split.Part(copies, {}), result)

    def _write_cat(self, info: OpInfo, func: Any, tensors: Sequence[torch.Tensor], result: torch.Tensor) -> None:
        """One copy for each tensor: the first makes the result, the others write it."""
        made = self._pages(result)
        for number, tensor in enumerate(tensors):
            used, its = self._pages(tensor), made if number == 0 else []
            work = work_of(info, func, ([tensor],), {}, tensor)
            _begins(self._in_parts, info, used if its else [*used, *made], its, work)
            self._in_parts.wrote(page.page for page in made if not its)

    def _pages(self, values: Any) -> list[Entry]:
        """Of the tensors among ``values``, each once."""
        tensors = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
        return list(dict.fromkeys(e for t in tensors if (e := self._entry(untyped_storage(t))) is not None))

    def _entry(self, storage: torch.UntypedStorage) -> Entry | None:
        entry = self._registry.find(storage)
        if entry is None and storage_nbytes(storage) >= self._min_size:
            return self._registry.add(storage, None)
        return entry

    def _bury(self) -> None:
        for entry in self._registry.dead():
            for recorder in (self._whole, self._in_parts):
                if entry.page in recorder.numbers:
                    recorder.died(entry.page)


def _with_values(result: Any, info: OpInfo, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``result``, of which PyTorch remembers the values where they depend on nothing."""
    if info.packet not in _CONSTANTS or result.numel() > _MOST_CONSTANT or result.device.type != "cpu":
        return result
    with torch._C._DisableTorchDispatch():
        values = func(*args, **kwargs)
    mode = result.fake_mode
    return mode.fake_tensor_converter.from_real_tensor(mode, values, make_constant=True)


def _begins(recorder: Recorder, info: OpInfo, used: list[Entry], made: list[Entry], work: Work) -> None:
    for page in used:
        recorder.found(Living(page.page, page.nbytes))
    new_bytes = sum(page.nbytes for page in made)
    recorder.begins(info.name, [page.page for page in used], new_bytes, 0.0, info.repeatable, work)
    for page in made:
        recorder.created(Living(page.page, page.nbytes))


def _refuse_strangers(args: Any, kwargs: Any) -> None:
    for leaf in pytree.arg_tree_leaves(*args, **kwargs):
        if isinstance(leaf, torch.nn.Parameter) and not isinstance(leaf, FakeTensor):
            raise UsageError(
                "expected all modules in `fn_or_module` or `inputs`; got a function that uses a parameter of shape "
                f"{tuple(leaf.shape)} from elsewhere: pass its module as an argument"
            )


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except _UNTOLD as error:
        raise UnsupportedError(
            f"expected operators that tell what they give before they run (a meta kernel); {error} does not, "
            f"{_place_of(error)}. Give it one by torch.library.register_fake, or record a step while it runs: "
            f"torch-lms run --trace FILE"
        ) from error
    except RuntimeError as error:
        if not isinstance(error, _NOT_KNOWN) and not any(text in str(error) for text in _BYTES_ASKED_FOR):
            raise
        raise UnsupportedError(
            f"the step depends on values, which are not known before it runs ({str(error).splitlines()[0]}), "
            f"{_place_of(error)}. Trace a part that does not, or record a step while it runs: "
            f"torch-lms run --trace FILE"
        ) from error


def _place_of(error: BaseException) -> str:
    """Where the program was, outside of PyTorch and of ourselves."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if f"{os.sep}torch{os.sep}" not in frame.filename and f"{os.sep}torch_lms{os.sep}" not in frame.filename
    ]
    return f"at {frames[-1].filename}:{frames[-1].lineno}" if frames else "in a module of PyTorch's own"
