"""Lets torchvision be imported beside a torch that it was not built for.

torchvision's wheels carry a library built for one variant of torch. Beside another one, a CPU build above all, it does
not load, and ``import torchvision`` fails on an operator that the library would have defined: "operator
torchvision::nms does not exist". timm, torchmetrics and others fail with it. Once the two operators that the import
asks for have a schema, models, data sets and transforms work; calling the operators does not, nor does torchvision's
own reading of images.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

_kept: list[Any] = []  # the schemas go when their library goes


def define_torchvision_operators() -> None:
    """Define torchvision's operators, without an implementation, if its own library cannot; else change nothing."""
    import torch

    spec = find_spec("torchvision")
    if spec is None or spec.origin is None or _loads(Path(spec.origin).parent):
        return
    if hasattr(torch.ops.torchvision, "nms"):  # somebody else has helped
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in SCHEMAS:
        library.define(schema)
    _kept.append(library)


def _loads(package: Path) -> bool:
    """Whether torchvision's own library loads. It may then be loaded again: the second time does nothing."""
    import torch

    try:
        for library in package.glob("_C*.so"):  # _C_stable.so since torchvision 0.29
            torch.ops.load_library(library)
            return True
    except OSError:
        pass
    return False
