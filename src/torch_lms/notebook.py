"""``%load_ext torch_lms``: while LMS is on, a line after each cell of a notebook says what the cell moved.

The line, and ``Stats.held_outputs``, also name tensors that only outputs of the notebook (``Out[3]``) may hold: they
live until it forgets them.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch_lms.live import moved_and_held
from torch_lms.units import format_bytes

if TYPE_CHECKING:
    from torch_lms.runtime.session import Session
    from torch_lms.runtime.stats import Stats

_MAX_OUTPUTS = 3
"""How many held outputs are named, the largest first."""

_LAST = ("_", "__", "___")

_loaded: list["CellLine"] = []


def load(shell: Any) -> None:
    """Have ``shell``, IPython's, print a line after each cell."""
    from torch_lms.runtime import outputs

    line = CellLine(shell)
    shell.events.register("pre_run_cell", line.begin)
    shell.events.register("post_run_cell", line.end)
    outputs.add(line.outputs)
    _loaded.append(line)


def unload(shell: Any) -> None:
    """No more lines in ``shell``."""
    from torch_lms.runtime import outputs

    for line in [line for line in _loaded if line.shell is shell]:
        shell.events.unregister("pre_run_cell", line.begin)
        shell.events.unregister("post_run_cell", line.end)
        outputs.remove(line.outputs)
        _loaded.remove(line)


class CellLine:
    """Compares the statistics after a cell with those before."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self._session: Session | None = None
        self._before: Stats | None = None

    def begin(self, _info: Any) -> None:
        """A cell begins."""
        from torch_lms.runtime import api

        self._session = api.current_session()
        self._before = api.stats()

    def end(self, _result: Any) -> None:
        """A cell has ended, or raised."""
        from torch_lms.runtime import api

        session = api.current_session()
        if session is None:
            return
        after = api.stats()
        was_counting = session is self._session and self._before is not None and self._before.steps <= after.steps
        print(cell_line(self._before if was_counting else None, after))

    def outputs(self) -> dict[str, int]:
        """See ``held_outputs``."""
        return held_outputs(self.shell.user_ns)


def cell_line(before: "Stats | None", after: "Stats") -> str:
    """What moved between the two; ``before`` is None where LMS was turned on, or began to count anew, in between."""
    evicted, fetched, stall_s = after.evicted_bytes, after.fetched_bytes, after.stall_s
    if before is not None:
        evicted -= before.evicted_bytes
        fetched -= before.fetched_bytes
        stall_s -= before.stall_s
    line = f"LMS: {moved_and_held(evicted, fetched, stall_s, after.peak_resident_bytes, after.limit_bytes)}"
    held = after.held_outputs
    if not held:
        return line
    largest = sorted(held, key=lambda name: -held[name])[:_MAX_OUTPUTS]
    return f"{line}; outputs hold {', '.join(f'{name} {format_bytes(held[name])}' for name in largest)}"


def held_outputs(variables: Mapping[str, Any]) -> dict[str, int]:
    """The bytes of the tensors in each of a notebook's outputs that has any, by its name.

    Args:
        variables: of the notebook. The last three outputs are in ``_``, ``__`` and ``___``, too, and there alone if
            IPython keeps no others.
    """
    kept = variables.get("Out", {})
    outputs = {f"Out[{number}]": value for number, value in kept.items()}
    outputs |= {name: variables.get(name) for name in _LAST if not any(variables.get(name) is v for v in kept.values())}
    held = {name: sum(_nbytes(value)) for name, value in outputs.items()}
    return {name: nbytes for name, nbytes in held.items() if nbytes}


def _nbytes(value: Any) -> Iterator[int]:
    """Of the tensors in ``value``. Their shapes tell: a storage has no bytes while its page is away."""
    import torch
    from torch.utils import _pytree as pytree

    for leaf in pytree.tree_leaves(value):
        tensors = leaf.state_dict().values() if isinstance(leaf, torch.nn.Module) else [leaf]
        yield from (each.numel() * each.element_size() for each in tensors if isinstance(each, torch.Tensor))
