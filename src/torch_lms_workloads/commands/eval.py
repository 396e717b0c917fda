"""Measure a trained network on a data set's whole images, and show input, truth and prediction side by side."""

from pathlib import Path
from typing import Any

import click

from torch_lms.errors import UsageError
from torch_lms.output import JsonTarget, json_option, write_json
from torch_lms_workloads.commands.options import AMP_OPTION, SET_OPTION, paging_of, paging_options, spoken, workload_of
from torch_lms_workloads.commands.out_of_memory import explained
from torch_lms_workloads.data.datasets import Wholes
from torch_lms_workloads.data.open import format_of
from torch_lms_workloads.prediction.panels import side_by_side
from torch_lms_workloads.prediction.trained import Trained, read_trained
from torch_lms_workloads.training.choices import divided
from torch_lms_workloads.training.material import opened_whole
from torch_lms_workloads.training.metrics import counting, new_metric
from torch_lms_workloads.training.placing import Placing
from torch_lms_workloads.training.progress import Say
from torch_lms_workloads.training.ranks import Ranks


@click.command()
@click.argument("workload")
@click.option("--data", required=True, help='Folder of the data set, or "synthetic".')
@click.option(
    "--checkpoint", required=True, type=click.Path(path_type=Path), help="The checkpoint that `torch-lms train` wrote."
)
@click.option("--pictures", type=click.Path(path_type=Path), help="Folder for pictures: input, truth, prediction.")
@SET_OPTION
@AMP_OPTION
@paging_options
@json_option
def command(
    workload: str,
    data: str,
    checkpoint: Path,
    pictures: Path | None,
    options: dict[str, Any],
    amp: str,
    json_to: JsonTarget | None,
    **paged: Any,
) -> None:
    """Measure a checkpoint of WORKLOAD on the images that DATA has for validation, each as a whole.

    Options of the data set are those of the training, unless they are given.
    """
    target = workload_of(workload)
    device = Ranks().device()
    say = spoken(json_to)
    if pictures is not None and pictures.exists() and not pictures.is_dir():
        raise UsageError(f"--pictures {pictures} is no folder: name another")
    trained = read_trained(target, checkpoint)
    wholes = _opened(trained, data, options)
    placing = Placing(device, amp=amp, channels_last=False, dimensions=target.dimensions)
    paging = paging_of(paged)
    with explained(paging, device, f"measuring on {data}"), paging.session(device) as lms:
        value = _measured(trained, wholes, placing, pictures, say)
        stats = lms.stats() if lms is not None else None
    say(f"{target.metric} {value:.4f} on {len(wholes)} images")
    if json_to is not None:
        result = {"metric": value, "metric_name": target.metric, "images": len(wholes), "stats": stats}
        write_json(result, json_to)


def _opened(trained: Trained, data: str, options: dict[str, Any]) -> Wholes:
    """Open the images to measure on. Options of the training hold, if its data were of the same kind."""
    earlier = trained.content["data"]
    kind = format_of(data, options.get("kind")).kind
    given = {**earlier, **options} if earlier["kind"] == kind else options
    choices = divided(trained.workload, data, given)
    if choices.network:
        raise UsageError(f"{', '.join(choices.network)} of the network is the checkpoint's: omit it")
    wholes = opened_whole(trained.workload, data, choices, size=trained.content["recipe"]["size"])
    if wholes.about.classes != trained.about.classes:
        raise UsageError(
            f"{data} has {wholes.about.classes} classes and {trained.path} {trained.about.classes}: give the data that "
            "it was trained with, or their options with --set"
        )
    return wholes


def _measured(trained: Trained, wholes: Wholes, placing: Placing, pictures: Path | None, say: Say) -> float:
    """The metric over all images."""
    assert trained.workload.metric is not None
    network = trained.network(placing)
    metric = new_metric(trained.workload.metric, wholes.about.classes, wholes.about.ignored)
    for whole in wholes:
        assert whole.target is not None
        found = trained.answer(network, placing, whole.image).classes
        with counting():
            metric.update(found.unsqueeze(0), whole.target.unsqueeze(0))
        if pictures is not None:
            side_by_side(whole.image, whole.target, found, wholes.about, pictures / f"{whole.name}.png")
        say(whole.name)
    with counting():
        return float(metric.compute())
