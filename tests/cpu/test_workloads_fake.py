"""The workloads at the sizes that they are for, on tensors without memory."""

from typing import Any

import pytest
from one_step import one_step
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from torch_lms_workloads.catalogue.deeplabv3plus import deeplabv3plus
from torch_lms_workloads.catalogue.googlenet import googlenet
from torch_lms_workloads.catalogue.gpt import gpt
from torch_lms_workloads.catalogue.gscnn import gscnn
from torch_lms_workloads.catalogue.resnet50 import resnet50
from torch_lms_workloads.catalogue.unet3d import unet3d
from torch_lms_workloads.workload import Workload

LARGE: list[tuple[Workload, dict[str, Any]]] = [
    (deeplabv3plus, {"size": 900, "batch": 2}),
    (deeplabv3plus, {"size": 513, "batch": 1, "backbone": "mobilenetv2_100", "freeze_batch_norm": True}),
    (resnet50, {"size": 6000, "batch": 1}),
    (unet3d, {"size": 400, "batch": 1}),
    (unet3d, {"size": 384, "batch": 1, "levels": 6, "deep_supervision": True}),
    (googlenet, {"size": 2240, "batch": 15}),
    (gscnn, {"size": 800, "batch": 4}),
    (gpt, {}),
]


@pytest.mark.parametrize(("workload", "chosen"), LARGE, ids=lambda value: getattr(value, "name", None))
def test_a_step_without_memory(workload: Workload, chosen: dict[str, Any]) -> None:
    with FakeTensorMode():
        step = one_step(workload, **chosen)
    held = [*step.model.parameters(), *step.model.buffers(), *step.inputs, step.loss]
    assert all(isinstance(tensor, FakeTensor) for tensor in held)
    assert step.loss.shape == ()
    assert step.untrained == []
