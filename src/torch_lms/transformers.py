"""A callback that turns LMS on for the Trainer of transformers."""

from typing import Any

from torch_lms.figures import Figures, turn_on
from torch_lms.targets.torchvision_operators import define_torchvision_operators

define_torchvision_operators()

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError(
        f"torch_lms.transformers needs transformers and accelerate ({error}): pip install 'torch-lms[transformers]'"
    ) from error


class LMSCallback(TrainerCallback):  # type: ignore[misc]  # read as Any
    """Turns LMS on when it is made, so make it before the Trainer, which moves the model to the device.

    While LMS is on, ``LMSCallback()`` alone takes the session as it is. It stays on when training ends. Each rank makes
    a callback of its own, and so has LMS.

    What the Trainer logs has ``lms_evicted_gb``, ``lms_fetched_gb`` (1e9 bytes that left the device, and came back) and
    ``lms_waited_s`` (seconds that the program waited for them) since training began, and ``lms_peak_gb``, the most
    that was on the device so far. So the progress bar shows them, and ``trainer.state.log_history`` has them. Loggers
    that the Trainer makes itself (``report_to``) come before all callbacks of the program, and do not see them.

    Args:
        options: what ``torch_lms.enable`` takes, such as ``limit``.

    Raises:
        UsageError: an option cannot be obeyed.
        SessionError: LMS is on already, with options that cannot be changed.
    """

    def __init__(self, **options: Any) -> None:
        turn_on(options)
        self._figures = Figures()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count from here on."""
        self._figures.begin()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Add the figures."""
        if logs is None:
            return
        figures = self._figures.now()
        logs.update(figures)
        if state.log_history:
            state.log_history[-1].update(figures)
