"""The networks of the workloads: how large they are, and that they train."""

from pathlib import Path
from typing import Any

import pytest
import torch
from one_step import one_step

import torch_lms
from torch_lms_workloads.catalogue.deeplabv3plus import deeplabv3plus
from torch_lms_workloads.catalogue.googlenet import googlenet
from torch_lms_workloads.catalogue.gpt import gpt
from torch_lms_workloads.catalogue.gscnn import gscnn
from torch_lms_workloads.catalogue.resnet50 import resnet50
from torch_lms_workloads.catalogue.unet3d import unet3d
from torch_lms_workloads.workload import Workload

SMALL_GPT = {"layers": 2, "hidden": 64, "heads": 4, "vocabulary": 100}
DOCUMENT = Path(__file__).parents[2] / "docs" / "workloads.md"

PARAMETERS: list[tuple[Workload, dict[str, Any], int]] = [
    (deeplabv3plus, {}, 41_055_413),
    (deeplabv3plus, {"backbone": "mobilenetv2_100"}, 2_719_813),
    (deeplabv3plus, {"backbone": "resnet50"}, 26_696_133),
    (deeplabv3plus, {"backbone": "resnet101"}, 45_688_261),
    (deeplabv3plus, {"backbone": "pnasnet5large", "output_stride": 32}, 87_908_577),
    (resnet50, {}, 25_557_032),
    (googlenet, {}, 13_004_888),
    (unet3d, {}, 16_543_683),
    (unet3d, {"levels": 6, "deep_supervision": True}, 31_190_796),
    (gscnn, {}, 137_278_144),
    (gscnn, {"backbone": "resnet50"}, 40_523_200),
    (gscnn, {"backbone": "resnet101"}, 59_515_328),
    (gpt, {}, 202_619_904),
]

SMALL: list[tuple[Workload, dict[str, Any]]] = [
    (deeplabv3plus, {"size": 33, "batch": 2}),
    (deeplabv3plus, {"size": 65, "batch": 2, "backbone": "mobilenetv2_100", "output_stride": 8}),
    (deeplabv3plus, {"size": 33, "batch": 1, "backbone": "mobilenetv2_100", "freeze_batch_norm": True}),
    (resnet50, {"size": 64, "batch": 1}),
    (resnet50, {"size": 64, "batch": 1, "model": "resnet18", "classes": 10}),
    (googlenet, {"size": 64, "batch": 1}),
    (unet3d, {"size": 32, "batch": 1}),
    (unet3d, {"size": 32, "batch": 1, "levels": 4, "channels": 8, "deep_supervision": True}),
    (gscnn, {"size": 33, "batch": 2, "backbone": "resnet50"}),
    (gpt, {"size": 33, "batch": 2, **SMALL_GPT}),
]

KEEPING_SIZE: list[tuple[Workload, dict[str, Any]]] = [
    (deeplabv3plus, {"output_stride": 8}),
    (deeplabv3plus, {"backbone": "pnasnet5large", "output_stride": 32}),
    (gscnn, {}),
]


def name_of(value: object) -> str:
    if isinstance(value, Workload):
        return value.name
    return ",".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else str(value)


@pytest.mark.parametrize(("workload", "options", "count"), PARAMETERS, ids=name_of)
def test_number_of_parameters(workload: Workload, options: dict[str, Any], count: int) -> None:
    with torch.device("meta"):
        model = workload.build(**workload.chosen(options))
    assert sum(parameter.numel() for parameter in model.parameters()) == count
    assert f"{count:,}" in DOCUMENT.read_text()


def test_deeplabv3plus_has_as_many_values_as_the_published_port() -> None:
    """Which counts the statistics of batch normalization, too: see docs/workloads.md."""
    with torch.device("meta"):
        model = deeplabv3plus.build(**deeplabv3plus.options)
    floating = [value for value in model.state_dict().values() if value.is_floating_point()]
    assert sum(value.numel() for value in floating) == 41_258_213


def test_googlenet_has_as_many_parameters_as_published_beside_the_auxiliary_ones() -> None:
    with torch.device("meta"):
        model = googlenet.build(**googlenet.options)
    assert sum(value.numel() for name, value in model.named_parameters() if not name.startswith("aux")) == 6_624_904


@pytest.mark.parametrize(("workload", "chosen"), SMALL, ids=name_of)
def test_a_step_on_the_cpu(workload: Workload, chosen: dict[str, Any]) -> None:
    torch.manual_seed(0)
    step = one_step(workload, **chosen)
    assert step.loss.shape == ()
    assert step.loss.isfinite()
    assert step.untrained == []


@pytest.mark.parametrize("size", [513, 130])
def test_segmentation_keeps_the_size_of_the_image(size: int) -> None:
    with torch.device("meta"):
        for workload, options in KEEPING_SIZE:
            model, inputs, _ = workload(size=size, batch=2, **options)
            outputs = model(*inputs)
            logits = outputs[0] if isinstance(outputs, tuple) else outputs
            assert logits.shape == (2, workload.options["classes"], size, size)


def test_frozen_batch_norm_is_neither_trained_nor_updated() -> None:
    model, inputs, loss = deeplabv3plus(size=33, batch=2, backbone="mobilenetv2_100", freeze_batch_norm=True)
    before = {name: value.clone() for name, value in model.named_buffers()}
    loss(model(*inputs)).backward()
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())
    assert {name for name, _ in model.named_parameters() if "bn" in name} == set()


def test_the_next_token_does_not_tell() -> None:
    model, (tokens,), _ = gpt(size=8, batch=1, **SMALL_GPT)
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % SMALL_GPT["vocabulary"]
    torch.testing.assert_close(model(tokens)[:, :-1], model(changed)[:, :-1])


def test_a_workload_is_paged_to_the_bit() -> None:
    chosen = {"size": 65, "batch": 2, "backbone": "mobilenetv2_100"}

    def loss(limit: str | None) -> torch.Tensor:
        torch.manual_seed(0)
        if limit is None:
            return one_step(deeplabv3plus, **chosen).loss.detach()
        with torch_lms.session(limit=limit, min_size=0) as lms:
            value = one_step(deeplabv3plus, **chosen).loss.detach()
            assert lms.stats().evicted_bytes > 0
        return value

    assert torch.equal(loss(None), loss("10MB"))
