"""Does each workload learn a few real samples, and to the same bits under a limit?

    python benchmarks/learning.py --data FOLDER [--only TEXT] [--json FILE]

FOLDER holds voc2012, cityscapes_small, imagenet_folder, medical and taco. The brain is nilearn's, and TACO's pictures
are painted from its outlines. Half an hour on two cores.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
from PIL import Image, ImageDraw

from torch_lms.units import format_bytes

SHARE = 3
"""Of its demand, the limit is one part in so many."""

ADAMW = ("--optimizer", "adamw", "--lr", "0.001")
LEARN_BY_HEART = ("--set", "augment=false", "--deterministic")


@dataclass(frozen=True)
class Training:
    """What is trained on what. ``make`` finds the data below a folder, or makes them in another one."""

    name: str
    workload: str
    make: Callable[[Path, Path], Path]
    size: int
    batch: int
    steps: int
    options: tuple[str, ...]

    @property
    def arguments(self) -> list[str]:
        options = [word for option in self.options for word in ("--set", option)]
        return ["--size", str(self.size), "--batch", str(self.batch), *options]


def found(name: str) -> Callable[[Path, Path], Path]:
    return lambda data, _: data / name


def brain(_: Path, scratch: Path) -> Path:
    """The MNI152 template at 3 mm, with grey and white matter, as a NIfTI pair."""
    import nibabel

    from torch_lms.demo.data import read_brain, write_volume

    write_volume(read_brain(), scratch / "brain.npz", 3)
    with np.load(scratch / "brain.npz") as volumes:
        for name, file in (("scan", "image"), ("labels", "label")):
            nibabel.save(nibabel.Nifti1Image(volumes[name], np.diag([3, 3, 3, 1])), scratch / f"{file}.nii.gz")
    return scratch


def painted(data: Path, scratch: Path) -> Path:
    """TACO's first pictures at a quarter of their size: its outlines, filled, over noise."""
    told = json.loads((data / "taco/data/annotations.json").read_text())
    told["images"] = told["images"][:4]
    kept = {image["id"]: image for image in told["images"]}
    told["annotations"] = [a for a in told["annotations"] if a["image_id"] in kept]
    for image in kept.values():
        image["width"], image["height"] = image["width"] // 4, image["height"] // 4
    for annotation in told["annotations"]:
        annotation["segmentation"] = [[x / 4 for x in ring] for ring in annotation["segmentation"]]
    for number, image in kept.items():
        noise = np.random.default_rng(number).integers(0, 128, (image["height"], image["width"], 3), np.uint8)
        picture = Image.fromarray(noise)
        for annotation in told["annotations"]:
            for ring in annotation["segmentation"] if annotation["image_id"] == number else ():
                ImageDraw.Draw(picture).polygon(ring, fill=(200, 220, 90))
        path = scratch / image["file_name"]
        path.parent.mkdir(exist_ok=True)
        picture.save(path, quality=95)
    (scratch / "annotations.json").write_text(json.dumps(told))
    return scratch


ALL = ("split=all", "val_split=all")
CT = (*ALL, "modality=CT", "spacing=6")
LITTER = (*ALL, "backbone=mobilenetv2_100", "classes=litter")
STREET = ("backbone=resnet50", "split=val")
SEEN = ("val_split=train",)

TRAININGS = (
    Training("DeepLabv3+, xception65, PASCAL VOC", "deeplabv3plus", found("voc2012"), 129, 2, 60, SEEN),
    Training("DeepLabv3+, MobileNetV2, TACO", "deeplabv3plus", painted, 193, 2, 60, LITTER),
    Training("3D U-Net, MNI152", "unet3d", brain, 48, 1, 60, ALL),
    Training("3D U-Net, CT, pulmonary artery", "unet3d", found("medical/totalseg_pulmonary"), 48, 1, 60, CT),
    Training("Gated-SCNN, ResNet-50, Cityscapes", "gscnn", found("cityscapes_small"), 129, 2, 40, STREET),
    Training("GoogLeNet, class folders", "googlenet", found("imagenet_folder"), 128, 8, 100, SEEN),
    Training("ResNet-50, class folders", "resnet50", found("imagenet_folder"), 128, 8, 100, SEEN),
)


@dataclass(frozen=True)
class Learnt:
    """How it went."""

    training: str
    steps: int
    demand_bytes: int
    limit_bytes: int
    moved_bytes: int
    loss_before: float
    loss_after: float
    metric: str
    metric_before: float
    metric_after: float
    is_equal: bool


def learn(training: Training, data: Path) -> Learnt:
    with TemporaryDirectory() as folder:
        scratch = Path(folder)
        arguments = [training.workload, "--data", str(training.make(data, scratch)), *training.arguments]

        def train(steps: int, *more: str) -> dict[str, Any]:
            return _train(scratch, *arguments, *LEARN_BY_HEART, "--steps", str(steps), *more)

        before = train(1, "--optimizer", "sgd", "--lr", "1e-12")
        demand = before["stats"]["demand_bytes"]
        stock = train(training.steps, *ADAMW, "--no-lms")
        paged = train(training.steps, *ADAMW, "--limit", str(demand // SHARE))
    losses = [float.fromhex(loss) for loss in stock["losses"]]
    return Learnt(
        training.name,
        training.steps,
        demand,
        demand // SHARE,
        paged["stats"]["evicted_bytes"],
        losses[0],
        losses[-1],
        stock["metric_name"],
        before["metric"],
        stock["metric"],
        stock["losses"] == paged["losses"] and stock["metric"] == paged["metric"],
    )


def _train(scratch: Path, *arguments: str) -> dict[str, Any]:
    target = scratch / "result.json"
    command = [sys.executable, "-m", "torch_lms", "train", *arguments, "--json", str(target)]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        raise click.ClickException(f"{' '.join(command)}\n{ended.stdout[-1000:]}{ended.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(target.read_text())
    return result


def learnt(data: Path, only: str) -> Iterator[Learnt]:
    for training in TRAININGS:
        if only.lower() in training.name.lower():
            yield learn(training, data)


@click.command(help=__doc__)
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--only", default="", help="Only what has this in its name.")
@click.option("--json", "target", type=click.Path(path_type=Path))
def main(data: Path, only: str, target: Path | None) -> None:
    print("| training | steps | loss before, after | metric | before, after | demand | limit | moved out | equal |")
    print("|---|---|---|---|---|---|---|---|---|")
    rows = []
    for row in learnt(data, only):
        rows.append(row)
        cells = (
            *(row.training, str(row.steps), f"{row.loss_before:.3f}, {row.loss_after:.3f}", row.metric),
            *(f"{row.metric_before:.3f}, {row.metric_after:.3f}", format_bytes(row.demand_bytes)),
            *(format_bytes(row.limit_bytes), format_bytes(row.moved_bytes), "to the bit" if row.is_equal else "NO"),
        )
        print(f"| {' | '.join(cells)} |", flush=True)
    if target is not None:
        target.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    if not all(row.is_equal for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
