"""Callbacks that turn LMS on for Keras 3 on PyTorch, for users of TensorFlow LMS, too. See docs/keras.md."""

import inspect
import logging
from typing import Any

import torch_lms
from torch_lms.errors import UsageError
from torch_lms.figures import Figures, turn_on

try:
    import keras
except ModuleNotFoundError as error:
    if error.name != "keras":  # the package of its backend, such as TensorFlow
        raise ImportError(
            f"Keras cannot import {error.name}, which its backend needs: LMS works on Keras's PyTorch backend, so set "
            f"KERAS_BACKEND=torch in the environment before Keras is imported"
        ) from error
    raise ModuleNotFoundError(
        "torch_lms.keras needs Keras, which is not installed: pip install 'torch-lms[keras]'", name="keras"
    ) from error

_log = logging.getLogger("torch_lms")

_OF_GRAPHS = (
    *("graph", "optimizer_scopes_override", "starting_scope", "starting_op_names"),
    *("excl_scopes", "incl_scopes", "excl_types", "incl_types", "fuse_swapins", "ctrld_strategy"),
    *("swap_branches", "branch_threshold", "debug", "debug_level", "cpu_device"),
)
"""Names of TFLMS 1 that say how a graph of TensorFlow's is searched, rewritten or shown."""


class LMS(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not annotated
    """Turns LMS on when it is made, so make it before the model; and adds figures to the logs of training.

    While LMS is on, ``LMS()`` alone takes the session as it is. It stays on when training ends.

    The logs of a batch and of an epoch have ``lms_evicted_gb``, ``lms_fetched_gb`` (1e9 bytes that left the device,
    and came back) and ``lms_waited_s`` (seconds that the program waited for them) since the epoch began, and
    ``lms_peak_gb``, the most that was on the device so far. Callbacks after this one see them, Keras's own among them.

    Args:
        options: what ``torch_lms.enable`` takes, such as ``limit``; or tunables of TFLMS 2, such as
            ``swapout_threshold``, which choose the policy "tflms2".

    Raises:
        UsageError: Keras does not run on PyTorch; or an option cannot be obeyed.
        SessionError: LMS is on already, with options of its own.
    """

    async_safe = True  # Keras may call it on a thread beside the next step, instead of waiting for each step

    def __init__(self, **options: Any) -> None:
        super().__init__()
        backend = keras.backend.backend()
        if backend != "torch":
            raise UsageError(
                f"LMS works on Keras's PyTorch backend; this is Keras {keras.__version__} on {backend!r}: set "
                f"KERAS_BACKEND=torch in the environment before Keras is imported"
            )
        turn_on(_with_tune(options))
        self._figures = Figures()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._figures.begin()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._add_to(logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._add_to(logs)

    def _add_to(self, logs: dict[str, Any] | None) -> None:
        if logs is not None:
            logs.update(self._figures.now())


class LMSKerasCallback(LMS):
    """The same by the names of TFLMS 1: ``n_tensors``, ``lb`` and ``ub`` beside the options of ``torch_lms.enable``.

    What says how a graph of TensorFlow's is rewritten is ignored, and a warning names it. Errors as for ``LMS``.
    """

    def __init__(self, optimizer_scopes_override: Any = None, **options: Any) -> None:
        given = {"optimizer_scopes_override": optimizer_scopes_override, **options}
        ignored = [name for name in _OF_GRAPHS if given.pop(name, None)]
        if ignored:
            _log.warning("without a graph of TensorFlow's there is no meaning in %s", ", ".join(ignored))
        super().__init__(**{"n_tensors": -1, "lb": 1, **given})


def _with_tune(options: dict[str, Any]) -> dict[str, Any]:
    """Arguments of ``enable``: what it does not know is a tunable."""
    known = inspect.signature(torch_lms.enable).parameters
    tune = {name: value for name, value in options.items() if name not in known}
    if not tune:
        return options
    kept = {name: value for name, value in options.items() if name in known}
    return {"policy": "tflms2", **kept, "tune": {**kept.get("tune", {}), **tune}}
