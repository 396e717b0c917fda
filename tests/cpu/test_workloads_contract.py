"""What can be relied on of any workload."""

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch

from torch_lms.errors import UsageError
from torch_lms_workloads.workload import Workload

FOUND: dict[str, Workload] = {point.name: point.load() for point in entry_points(group="torch_lms.workloads")}

DOCUMENT = Path(__file__).parents[2] / "docs" / "workloads.md"


def test_all_are_found() -> None:
    assert set(FOUND) == {"deeplabv3plus", "googlenet", "gpt", "gscnn", "resnet50", "unet3d"}


@pytest.mark.parametrize("name", FOUND)
def test_a_workload_is_what_its_name_says(name: str) -> None:
    workload = FOUND[name]
    assert isinstance(workload, Workload)
    assert workload.name == name
    workload.bounds(workload.options).check(name, workload.size, workload.batch)


@pytest.mark.parametrize("name", FOUND)
def test_inputs_have_the_size_and_the_batch(name: str) -> None:
    workload = FOUND[name]
    size, batch = workload.size // 2 // 16 * 16, 3
    (first,), _ = workload.sample(size, batch, workload.options)
    assert first.shape[0] == batch
    assert first.shape[-workload.dimensions :] == (size,) * workload.dimensions


@pytest.mark.parametrize("name", FOUND)
def test_the_document_says_what_can_be_chosen(name: str) -> None:
    workload = FOUND[name]
    row = next(line for line in DOCUMENT.read_text().splitlines() if line.startswith(f"| `{name}` |"))
    assert all(f"`{option}`" in row for option in workload.options)
    assert f"| {workload.size}, {workload.batch} |" in row
    assert f"{workload.optimizer.kind.__name__} {workload.optimizer.settings['lr']}" in row


def test_the_example() -> None:
    example = DOCUMENT.read_text().split("```python\n")[1].split("```")[0]
    exec(compile(example, str(DOCUMENT), "exec"), {})


def test_the_loss_knows_its_targets() -> None:
    torch.manual_seed(0)
    model, inputs, loss = FOUND["resnet50"](size=64, batch=2, model="resnet18", classes=3)
    outputs = model(*inputs)
    assert torch.equal(loss(outputs), loss(outputs))
    assert outputs.shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "chosen", "message"),
    [
        ("resnet50", {"colour": 1}, "resnet50 takes size, batch, model, classes; got colour"),
        ("resnet50", {"model": "nothing"}, "such as 'resnet50'; got 'nothing'"),
        ("resnet50", {"size": 63}, "resnet50 needs a size of at least 64; got 63"),
        ("resnet50", {"batch": 0}, "batch of at least 1; got 0"),
        ("deeplabv3plus", {"backbone": "vgg"}, "backbone must be one of xception65, .*; got 'vgg'"),
        ("deeplabv3plus", {"output_stride": 32}, "output_stride of xception65 must be 8 or 16; got 32"),
        ("deeplabv3plus", {"backbone": "pnasnet5large"}, "output_stride of pnasnet5large must be 32; got 16"),
        ("deeplabv3plus", {"size": 31}, "at least 32; got 31"),
        ("deeplabv3plus", {"batch": 1}, "batch of at least 2; got 1"),
        ("unet3d", {"size": 200}, "a multiple of 16, such as 192 or 208; got 200"),
        ("unet3d", {"size": 16}, "at least 32; got 16"),
        ("unet3d", {"size": 48, "levels": 6}, "at least 64; got 48"),
        ("unet3d", {"size": 72, "levels": 2}, "levels must be at least 3; got 2"),
        ("gscnn", {"backbone": "vgg"}, "backbone must be one of wide_resnet38, resnet50, resnet101; got 'vgg'"),
        ("gpt", {"heads": 5}, "a multiple of heads; got 1024 and 5"),
    ],
)
def test_what_cannot_be_is_refused(name: str, chosen: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        FOUND[name](**chosen)


IMPORTED = """
import sys, torch_lms_workloads
assert not {"timm", "monai", "torchvision"} & sys.modules.keys()
import torchvision
"""

LEFT_ALONE = """
import torch
torch.ops.load_library = lambda path: None  # as if it loaded
import torch_lms_workloads
assert not hasattr(torch.ops.torchvision, "nms")
"""

HELPED_BEFORE = """
import torch
def load_library(path): raise OSError
torch.ops.load_library = load_library
library = torch.library.Library("torchvision", "FRAGMENT")
library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
import torch_lms_workloads
"""


@pytest.mark.parametrize("program", [IMPORTED, LEFT_ALONE, HELPED_BEFORE])
def test_torchvision_can_be_imported_and_is_left_alone_if_it_works(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
