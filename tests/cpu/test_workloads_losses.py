"""Losses and samples on cases that can be worked out."""

import math

import pytest
import torch
from torch.nn import functional as F

from torch_lms_workloads.dual_task import balanced, dual_task, outlines_differ
from torch_lms_workloads.edges import slope
from torch_lms_workloads.losses import IGNORED, volumes, with_auxiliaries
from torch_lms_workloads.samples import PATCH, labelled_images, outlines

SURE = 40.0
"""A logit that leaves nothing to the noise."""


def halves(side: int = 16) -> torch.Tensor:
    """Class 0 on the left, 1 on the right."""
    labels = torch.zeros(1, side, side, dtype=torch.long)
    labels[:, :, side // 2 :] = 1
    return labels


def logits_for(labels: torch.Tensor, classes: int = 3) -> torch.Tensor:
    return F.one_hot(labels, classes).movedim(-1, 1).float() * SURE


def test_the_slope_of_a_ramp() -> None:
    ramp = torch.arange(16.0).expand(1, 2, 16, 16)
    torch.testing.assert_close(slope(ramp)[..., 3:-3], torch.ones(1, 2, 16, 10))


def test_a_flat_map_can_be_trained_along() -> None:
    flat = torch.zeros(1, 1, 8, 8, requires_grad=True)
    slope(flat).sum().backward()
    assert flat.grad is not None
    assert flat.grad.isfinite().all()


def test_outlines_lie_where_classes_meet() -> None:
    edges = outlines(halves(), radius=2)
    assert edges[0, 0, 0].tolist() == [0.0] * 6 + [1.0] * 4 + [0.0] * 6


def test_made_up_labels_come_in_patches() -> None:
    _, labels = labelled_images(20, 2, {"classes": 5})
    assert labels.shape == (2, 20, 20)
    assert (labels[:, :PATCH, :PATCH] == labels[:, :1, :1]).all()


def test_both_kinds_of_pixels_weigh_the_same() -> None:
    edges = outlines(halves(32))
    logits = torch.zeros_like(edges)
    share = edges.mean()
    assert balanced(logits, edges).item() == pytest.approx(2 * share.item() * (1 - share.item()) * math.log(2))


def test_equal_outlines_do_not_differ() -> None:
    labels = halves()
    assert outlines_differ(logits_for(labels), labels).item() == pytest.approx(0, abs=1e-6)
    assert outlines_differ(logits_for(labels.flip(1).mT.contiguous()), labels).item() > 0.05


def test_what_is_right_costs_nothing() -> None:
    labels = halves()
    edges = outlines(labels)
    outputs = logits_for(labels), (2 * edges - 1) * SURE
    assert dual_task(outputs, (labels, edges)).item() == pytest.approx(0, abs=1e-5)


def test_unknown_pixels_do_not_count() -> None:
    labels, unknown = halves(), halves()
    unknown[:, :4] = IGNORED
    wrong = logits_for(labels)
    wrong[:, :, :4] = wrong[:, :, :4].roll(1, dims=1)
    edges = outlines(labels)
    outputs = wrong, (2 * edges - 1) * SURE
    assert dual_task(outputs, (unknown, edges)).item() < 0.1 < dual_task(outputs, (labels, edges)).item()
    nothing = torch.full_like(labels, IGNORED)
    assert dual_task(outputs, (nothing, edges)).isfinite()


def test_right_volumes_cost_nothing_and_wrong_ones_do() -> None:
    labels = torch.randint(3, (2, 4, 4, 4))
    right = logits_for(labels)
    assert volumes(right, labels).item() == pytest.approx(0, abs=1e-4)
    assert volumes(right.roll(1, dims=1), labels).item() > 1


def test_heads_weigh_half_as_much_each() -> None:
    labels = torch.randint(3, (2, 4, 4, 4))
    first, second = torch.randn(2, 2, 3, 4, 4, 4)
    both = volumes(torch.stack([first, second], dim=1), labels)
    torch.testing.assert_close(both, (2 * volumes(first, labels) + volumes(second, labels)) / 3)


def test_auxiliary_classifiers_weigh_less() -> None:
    classes = torch.tensor([0, 1])
    logits = torch.randn(2, 4)
    torch.testing.assert_close(with_auxiliaries([logits] * 3, classes), 1.6 * F.cross_entropy(logits, classes))
