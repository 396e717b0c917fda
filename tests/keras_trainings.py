"""A CNN and a U-Net of Keras's, and trainings of them, whose results can be compared to the bit."""

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import layers

import torch_lms

SIZE, BATCH, BATCHES, EPOCHS = 32, 4, 4, 3


def cnn() -> keras.Model:
    """Classifies images. Has dropout."""
    blocks = [
        layer
        for width in (16, 32, 64)
        for layer in (
            *(layers.Conv2D(width, 3, padding="same", activation="relu") for _ in range(3)),
            layers.MaxPooling2D(),
            layers.Dropout(0.2),
        )
    ]
    head = [layers.Flatten(), layers.Dense(32, activation="relu"), layers.Dense(1, "sigmoid", dtype="float32")]
    return keras.Sequential([keras.Input((SIZE, SIZE, 3)), *blocks, *head])


def unet(width: int = 16, depth: int = 3) -> keras.Model:
    """Gives every pixel a class. Has batch normalization."""

    def block(x: Any, channels: int) -> Any:
        for _ in range(2):
            x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(channels, 3, padding="same")(x)))
        return x

    images = x = keras.Input((SIZE, SIZE, 3))
    skips = []
    for level in range(depth):
        x = block(x, width << level)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = block(x, width << depth)
    for level in reversed(range(depth)):
        x = block(layers.Concatenate()([layers.UpSampling2D()(x), skips[level]]), width << level)
    return keras.Model(images, layers.Conv2D(1, 1, activation="sigmoid", dtype="float32")(x))


NETWORKS = {"cnn": cnn, "unet": unet}


def data(network: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    count = BATCH * BATCHES
    labels = (count, SIZE, SIZE, 1) if network == "unet" else (count, 1)
    return rng.random((count, SIZE, SIZE, 3), dtype=np.float32), rng.integers(2, size=labels).astype(np.float32)


def compiled(network: str, **options: Any) -> keras.Model:
    """The model, with the same first weights each time."""
    keras.utils.set_random_seed(0)
    model = NETWORKS[network]()
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"], **options)
    return model


@dataclass(frozen=True)
class Outcome:
    """Of a training: losses of epochs, of an evaluation, and the bits of predictions and weights."""

    losses: list[float]
    evaluation: list[float]
    predictions: bytes
    weights: bytes


def fitted(model: keras.Model, network: str, callbacks: list[Any] | None = None) -> Outcome:
    x, y = data(network)
    history = model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    evaluation = model.evaluate(x, y, batch_size=BATCH, verbose=0)
    predictions = model.predict(x, batch_size=BATCH, verbose=0).tobytes()
    return Outcome(history.history["loss"], evaluation, predictions, weights_of(model))


def weights_of(model: keras.Model) -> bytes:
    return b"".join(weight.tobytes() for weight in model.get_weights())


def demand_bytes(network: str) -> int:
    """What a step of training needs on the device."""
    with torch_lms.session(limit="1GB", min_size="4KiB"):
        fitted(compiled(network), network)
        return torch_lms.stats().demand_bytes
