"""A callback that turns LMS on for the Trainer of Lightning."""

from typing import Any

import torch_lms
from torch_lms.figures import Figures, turn_on
from torch_lms.targets.torchvision_operators import define_torchvision_operators

define_torchvision_operators()

try:
    from lightning.pytorch import Callback
except ImportError as error:
    raise ImportError(f"torch_lms.lightning needs Lightning ({error}): pip install 'torch-lms[lightning]'") from error


class LMSCallback(Callback):  # type: ignore[misc]  # read as Any
    """Turns LMS on when it is made, and in each rank that is started with it, before the model moves to the device.

    While LMS is on, ``LMSCallback()`` alone takes the session as it is. It stays on when training ends.

    The module logs ``lms_evicted_gb``, ``lms_fetched_gb`` (1e9 bytes that left the device, and came back) and
    ``lms_waited_s`` (seconds that the program waited for them) since the epoch began, and ``lms_peak_gb``, the most
    that was on the device so far, to the logger and the progress bar.

    Args:
        options: what ``torch_lms.enable`` takes, such as ``limit``.

    Raises:
        UsageError: an option cannot be obeyed.
        SessionError: LMS is on already, with options that cannot be changed.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        turn_on(options)
        self._figures = Figures()

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """In a rank that was spawned the callback is there, and LMS is off."""
        if not torch_lms.is_enabled():
            turn_on(self._options)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Count from here on."""
        self._figures.begin()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log the figures."""
        pl_module.log_dict(self._figures.now(), prog_bar=True, on_step=True, on_epoch=False)
