"""What is made of tensors, of their elements and of their storages, and texts."""

import copy
import math
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tests.roads.protocols.common import Held

_MAKERS = "tensor", "as_tensor", "asarray"


def _printed(x: torch.Tensor, **options: Any) -> str:
    before = copy.copy(torch._tensor_str.PRINT_OPTS)
    torch.set_printoptions(**options)
    try:
        return f"{x}"
    finally:
        torch._tensor_str.PRINT_OPTS = before


def _made_by(maker: str, given: Any) -> torch.Tensor:
    """The function as it stands now, which a session may have patched."""
    return getattr(torch, maker)(given)


def _numbers(x: torch.Tensor, of: Callable[[torch.Tensor], Any], **options: Any) -> Any:
    return of([x[0, 1], x[2, 3]], **options)


_MADE_OF = {
    **{f"torch.{name}": partial(_made_by, name) for name in _MAKERS},
    **{f"torch.{name} of a storage": lambda x, f=name: _made_by(f, x.untyped_storage()) for name in _MAKERS},
    **{f"torch.{name} of a typed storage": lambda x, f=name: _made_by(f, x.storage()) for name in _MAKERS},
    **{f"torch.{name} of elements": partial(_numbers, of=partial(_made_by, name)) for name in _MAKERS},
    **{f"torch.{name} of numpy()": lambda x, f=name: _made_by(f, x.detach().numpy()) for name in _MAKERS},
    "torch.asarray copy": lambda x: torch.asarray(x, copy=True),
    "torch.asarray float64": lambda x: torch.asarray(x, dtype=torch.float64),
    "torch.tensor float64": lambda x: torch.tensor(x, dtype=torch.float64),
    "torch.tensor of a list of rows": lambda x: torch.tensor(x.tolist()),
    "FloatTensor of elements": partial(_numbers, of=torch.FloatTensor),
    "new_tensor of elements": lambda x: x.new_tensor([x[0, 1], x[2, 3]]),
    "new_tensor of a storage": lambda x: x.new_tensor(x.untyped_storage()),
    "torch.Tensor(x)": lambda x: torch.Tensor(x),
    "torch.Size of elements": lambda x: torch.Size([x[0, 1], x[0, 2]]),
    "torch.scalar_tensor": lambda x: torch.scalar_tensor(x[0, 1]),
    "torch.full": lambda x: torch.full((2, 2), x[0, 1]),
    "torch.stack of elements": lambda x: torch.stack([x[0, 1], x[2, 3]]),
    "x[i, j] = element": lambda x: x.detach().__setitem__((0, 0), x.detach()[1, 2]),
    "list[element]": lambda x: ["a", "b", "c", "d"][x[0, 1]],
    "range(element)": lambda x: list(range(x[0, 2])),
    "slice by elements": lambda x: torch.arange(6)[x[0, 0] : x[0, 3]],
    "index by elements": lambda x: torch.arange(6)[x[0, 1], ...],
    "index by a tensor": lambda x: torch.arange(6)[x],
    "index by rows": lambda x: torch.arange(16).view(4, 4)[list(x[:2])],
    "view by elements": lambda x: torch.arange(6).view(x[0, 2], -1),
    "dict key": lambda x: {x: 1}[x],
    "element in a list": lambda x: x[0, 1] in [0.5, x[0, 1]],
    "number in": lambda x: 2 in x,
    "sorted": lambda x: sorted(x.detach().flatten()),
    "sum": lambda x: sum(x),
    "min": lambda x: min(x.detach().flatten()),
    "unpacked": lambda x: (lambda *rows: rows)(*x),
    "zip": lambda x: list(zip(x, x, strict=True)),
    "reversed": lambda x: reversed(x),
    "random.choice": lambda x: random.choice(x),
    "math.sqrt": lambda x: math.sqrt(x[0, 1]),
    "round": lambda x: round(x[0, 1].item(), 3),
    "complex": lambda x: complex(x[0, 1]),
    "divmod": lambda x: x[0, 1].item() and divmod(1.0, x[0, 1].item()),
    "isinstance": lambda x: isinstance(x, torch.FloatTensor),
    "if": lambda x: 1 if x[0, 1] else 2,
}
_TEXTS = {
    "repr": repr,
    "str": str,
    "format": lambda x: f"{x}",
    "format of an element": lambda x: f"{x.detach()[0, 1]:.3f}",
    "% of an element": lambda x: "%.3f" % x[0, 1],  # noqa: UP031
    "repr of a parameter list": lambda x: repr([x]),
    "print full": lambda x: _printed(x, profile="full"),
    "print in sci": lambda x: _printed(x, sci_mode=True, precision=8),
    "print summarized": lambda x: _printed(x, threshold=2, edgeitems=1),
    "repr of a storage": lambda x: repr(x.untyped_storage()),
    "str of a typed storage": lambda x: str(x.storage()),
    "repr of a module": lambda x: repr(Held(x)),
    "tensor_repr of elements": lambda x: str(list(x.detach()[0])),
}
VALUES = {**_MADE_OF, **_TEXTS}
