"""Batches: the same whatever the workers, the ranks, and where a run was interrupted; and synthetic data."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor

from torch_lms_workloads.data.batches import Steps, steps_per_epoch, training_batches, validation_batches
from torch_lms_workloads.data.datasets import Samples
from torch_lms_workloads.data.open import open_data, open_whole

Batch = tuple[Tensor, Tensor]


def data(**options: Any) -> Samples:
    return open_data("synthetic", size=16, length=5, classes=4, **options)


def first(batches: Iterable[Any], number: int) -> list[Batch]:
    return [(images, targets) for images, targets in islice(batches, number)]


def same(one: list[Batch], other: list[Batch]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b) for pair in zip(one, other, strict=True) for a, b in zip(*pair, strict=True)
    )


def test_workers_change_nothing() -> None:
    alone = first(training_batches(data(), 2), 6)
    assert same(alone, first(training_batches(data(), 2, workers=2), 6))
    assert alone[0][0].shape == (2, 3, 16, 16)


def test_a_resumed_run_goes_on_where_it_was() -> None:
    assert same(first(training_batches(data(), 2), 6)[4:], first(training_batches(data(), 2, start=4), 2))


def test_ranks_share_what_one_process_would_see() -> None:
    alone = first(training_batches(data(), 4), 3)
    ranks = [first(training_batches(data(), 2, rank=rank, ranks=2), 3) for rank in range(2)]
    together = [(torch.cat([a[0], b[0]]), torch.cat([a[1], b[1]])) for a, b in zip(*ranks, strict=True)]
    assert same(alone, together)


def test_every_sample_once_an_epoch_and_shuffled_anew() -> None:
    steps = iter(Steps(5, 3, seed=0, start=0, rank=0, ranks=1))
    keys = [key for _ in range(10) for key in next(steps)]
    epochs = [[index for epoch, index in keys if epoch == number] for number in range(6)]
    assert all(sorted(epoch) == list(range(5)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 3


def test_a_batch_may_be_larger_than_the_data() -> None:
    [(images, _)] = first(training_batches(data(), 12), 1)
    assert len(images) == 12
    assert steps_per_epoch(5, 12) == 1
    assert steps_per_epoch(5, 2) == 3
    assert steps_per_epoch(9, 2, ranks=2) == 3


def test_validation_sees_every_sample_once_in_order() -> None:
    samples = data(split="val")
    batches = list(validation_batches(samples, 2))
    assert [len(images) for images, _ in batches] == [2, 2, 1]
    assert torch.equal(batches[1][0][1], samples[3][0])
    shares = [len(images) for rank in range(2) for images, _ in validation_batches(samples, 4, rank=rank, ranks=2)]
    assert shares == [3, 2]


def test_loading_leaves_the_random_numbers_of_the_program_alone() -> None:
    before = torch.get_rng_state()
    first(training_batches(data(), 2), 2)
    first(validation_batches(data(), 2), 2)
    assert torch.equal(before, torch.get_rng_state())


# -- synthetic -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "image", "target"),
    [
        ({}, (3, 19, 19), (19, 19)),
        ({"task": "classification", "classes": 1000}, (3, 19, 19), ()),
        ({"dimensions": 3, "classes": 3}, (1, 19, 19, 19), (19, 19, 19)),
    ],
)
def test_synthetic_data_have_any_size(options: Any, image: tuple[int, ...], target: tuple[int, ...]) -> None:
    samples = open_data("synthetic", size=19, **options)
    x, y = samples[0]
    assert (x.shape, x.dtype) == (image, torch.float32)
    assert (y.shape, y.dtype) == (target, torch.int64)
    assert y.max() < samples.about.classes
    whole = open_whole("synthetic", size=7, **options)[3]
    assert whole.image.shape[1:] == (7,) * samples.about.dimensions


def test_synthetic_data_depend_on_seed_split_and_index() -> None:
    plain = {"augment": False}
    same_again, other_seed, other_split = data(**plain)[1], data(seed=1, **plain)[1], data(split="val", **plain)[1]
    assert torch.equal(data(**plain)[1][0], same_again[0])
    for other in (other_seed, other_split, data(**plain)[2]):
        assert not torch.equal(same_again[0], other[0])


@pytest.mark.parametrize("options", [{}, {"task": "classification"}, {"dimensions": 3}])
def test_classes_of_synthetic_data_can_be_told_apart(options: Any) -> None:
    """The mean over pixels of one class is nearest to that of the same class in other samples."""
    means: list[dict[int, Tensor]] = []
    for whole in open_whole("synthetic", size=24, classes=4, length=12, **options):
        labels = whole.target.expand(whole.image.shape[1:])
        means.append({int(label): whole.image[:, labels == label].mean(1) for label in labels.unique()})
    centres = {label: next(m[label] for m in means if label in m) for label in range(4)}
    for sample in means:
        for label, mean in sample.items():
            assert min(centres, key=lambda other: float((centres[other] - mean).norm())) == label
