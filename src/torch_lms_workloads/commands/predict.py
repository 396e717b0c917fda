"""Predict whole pictures and volumes with a trained network, without tiles, also beyond the device's memory."""

import time
from pathlib import Path
from typing import Any

import click
import torch

from torch_lms.errors import LmsError, UsageError
from torch_lms.output import JsonTarget, json_option, write_json
from torch_lms.units import format_seconds
from torch_lms_workloads.commands.options import AMP_OPTION, paging_of, paging_options, spoken, workload_of
from torch_lms_workloads.commands.out_of_memory import explained
from torch_lms_workloads.data.files import PICTURES, VOLUMES, filled, names_in
from torch_lms_workloads.data.single import open_file
from torch_lms_workloads.data.source import Whole
from torch_lms_workloads.prediction.trained import Answer, Trained, read_trained
from torch_lms_workloads.training.placing import Placing
from torch_lms_workloads.training.ranks import Ranks

WRITTEN = (".png", ".nii.gz")


@click.command()
@click.argument("workload")
@click.option(
    "--checkpoint", required=True, type=click.Path(path_type=Path), help="The checkpoint that `torch-lms train` wrote."
)
@click.option("--input", "given", required=True, type=click.Path(path_type=Path), help="A file, or a folder of them.")
@click.option(
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="A folder; or, of one input, a file that ends in .png or .nii.gz.",
)
@AMP_OPTION
@paging_options
@json_option
def command(
    workload: str, checkpoint: Path, given: Path, output: Path, amp: str, json_to: JsonTarget | None, **paged: Any
) -> None:
    """Predict the classes in pictures or volumes with a checkpoint of WORKLOAD.

    Each is predicted as a whole. Classes are written as a PNG with the data set's colours, or as a NIfTI file that lies
    where the volume lies; one class for the whole is printed, and part of the JSON.
    """
    target = workload_of(workload)
    device = Ranks().device()
    say = spoken(json_to)
    trained = read_trained(target, checkpoint)
    stems = {path: _stem(path, given, output) for path in _inputs(given, target.dimensions)}
    placing = Placing(device, amp=amp, channels_last=False, dimensions=target.dimensions)
    paging = paging_of(paged)
    predictions = []
    with explained(paging, device, f"predicting {given}"), paging.session(device) as lms:
        network = trained.network(placing)
        for path, stem in stems.items():
            began_s = time.perf_counter()
            whole = open_file(path, about=trained.about, **trained.content["prepared"])
            answer = trained.answer(network, placing, whole.image)
            written = _write(trained, whole, answer, stem)
            say(f"{path}: {written} ({format_seconds(time.perf_counter() - began_s)})")
            predictions.append({"input": path, "output": written, "certainty": answer.certainty})
        del network
        stats = lms.stats() if lms is not None else None
    if json_to is not None:
        write_json({"predictions": predictions, "stats": stats}, json_to)


def _inputs(given: Path, dimensions: int) -> list[Path]:
    """The files to predict.

    Raises:
        UsageError: there is none of a kind that the network takes.
    """
    endings = PICTURES if dimensions == 2 else VOLUMES
    if given.is_dir():
        found = [given / name for name in names_in(given, endings)]
        return list(filled(found, given, f"expected files that end in {', '.join(endings)}"))
    if not given.exists():
        raise UsageError(f"{given} is missing: give a file, or a folder of files, that end in {', '.join(endings)}")
    if not given.name.lower().endswith(endings):
        raise UsageError(
            f"{given}: this network takes files that end in {', '.join(endings)}: convert it, or give another"
        )
    return [given]


def _stem(path: Path, given: Path, output: Path) -> Path:
    """The file to be written for ``path``, without its ending."""
    if not given.is_dir():
        for ending in WRITTEN:
            if output.name.endswith(ending):
                return output.with_name(output.name.removesuffix(ending))
    if output.exists() and not output.is_dir():
        raise UsageError(f"--output {output} is no folder: name another, or a file that ends in {' or '.join(WRITTEN)}")
    name = path.name.removesuffix(".gz")
    return output / name.removesuffix(Path(name).suffix)


def _write(trained: Trained, whole: Whole, answer: Answer, stem: Path) -> str:
    """Write the answer; gives the file, or the class where the answer is one for the whole."""
    if answer.certainty is not None:
        return trained.about.names[int(answer.classes)]
    assert whole.prediction is not None
    try:
        return str(whole.prediction.write(answer.classes.to(torch.uint8), stem))
    except OSError as error:
        raise LmsError(
            f"{stem} cannot be written ({error.strerror}): free some space, or name another folder"
        ) from error
