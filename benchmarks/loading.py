"""What reading and augmenting an image takes of a core: decode, crop and resize, flip, normalize.

python benchmarks/loading.py                # sizes of the articles
python benchmarks/loading.py --size 224     # one size

The image is a JPEG file of 500 x 375, which is about the mean of ImageNet, with noise over a gradient. Seconds are of
the processor, so that others at work on the machine hardly count. They are for ``torch-lms plan --loading``.
"""

import io
import statistics
import time

import click
import numpy as np
from PIL import Image

SIDES = (500, 375)
REPEATS = 9


def picture() -> bytes:
    """A JPEG file."""
    width, height = SIDES
    generator = np.random.default_rng(0)
    slope = np.linspace(0, 200, width)[None, :, None]
    pixels = slope + generator.integers(0, 40, (height, width, 3))
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def load(file: bytes, size: int) -> np.ndarray:
    """An image of that side, ready for a network: (3, size, size), float32."""
    image = Image.open(io.BytesIO(file)).convert("RGB").crop((20, 20, 370, 370))
    image = image.resize((size, size), Image.Resampling.BILINEAR).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = np.asarray(image, dtype=np.float32) / 255
    normalized = (pixels - np.float32(0.45)) / np.float32(0.225)
    return np.ascontiguousarray(normalized.transpose(2, 0, 1))


def seconds(size: int, repeats: int = REPEATS) -> float:
    """The median seconds of a core for one image."""
    file = picture()
    load(file, size)
    found = []
    for _ in range(repeats):
        began_s = time.process_time()
        load(file, size)
        found.append(time.process_time() - began_s)
    return statistics.median(found)


@click.command(help=__doc__)
@click.option("--size", "sizes", multiple=True, type=click.IntRange(1), default=(224, 513, 800, 1300, 2240))
def main(sizes: tuple[int, ...]) -> None:
    for size in sizes:
        print(f"{size:>5}^2  {seconds(size):.4f} s of a core", flush=True)


if __name__ == "__main__":
    main()
