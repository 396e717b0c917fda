"""Keras on PyTorch."""

import os
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

from dataclasses import asdict

import keras

from tests import keras_trainings
from tests.trainers.run import Run


def fitted_and_saved(run: Run, network: str) -> dict[str, Any]:
    """Fitted, evaluated, saved, loaded, and fitted on."""
    from torch_lms.keras import LMS

    callbacks = run.callbacks(LMS)
    model = keras_trainings.compiled(network)
    first = keras_trainings.fitted(model, network, callbacks)
    model.save(run.folder / "model.keras")
    keras.utils.set_random_seed(1)
    second = keras_trainings.fitted(keras.saving.load_model(run.folder / "model.keras"), network, callbacks)
    return {"first": asdict(first), "loaded": asdict(second)}
