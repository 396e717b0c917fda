"""Checkpoints the blocks of a model, as a user of ``torch.utils.checkpoint`` would."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def checkpoint_blocks(model: "nn.Module", *, keeps_random_state: bool = False) -> int:
    """Have every block recomputed in backward; gives how many there are.

    Blocks are the children of a row: a ``Sequential`` or ``ModuleList`` of several modules of one class, which have
    children of their own. Of rows inside each other, the outermost counts.

    Args:
        model: whose blocks.
        keeps_random_state: whether the recomputation draws what forward drew, as it has to where values count.
    """
    inside: set[nn.Module] = set()
    blocks = 0
    for row in model.modules():
        if row in inside or not _is_row_of_blocks(row):
            continue
        for block in row.children():
            inside.update(block.modules())
            block.forward = _checkpointed(block.forward, keeps_random_state)
            blocks += 1
    return blocks


def _is_row_of_blocks(module: "nn.Module") -> bool:
    from torch import nn

    if not isinstance(module, nn.Sequential | nn.ModuleList):
        return False
    children = list(module.children())
    classes = {type(child) for child in children}
    return len(children) > 1 and len(classes) == 1 and any(True for _ in children[0].children())


def _checkpointed(forward: Callable[..., Any], keeps_random_state: bool) -> Callable[..., Any]:
    from torch.utils.checkpoint import checkpoint

    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(
            forward,
            *args,
            use_reentrant=False,
            preserve_rng_state=keeps_random_state,
            context_fn=_as_in_forward,
            **kwargs,
        )

    return checkpointed


def _as_in_forward() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Around forward nothing; around its recomputation the mode that chose its operators: backward has none."""
    from torch.overrides import _get_current_function_mode

    return nullcontext(), _get_current_function_mode() or nullcontext()
