"""The steps with which ``torch-lms plan --validate`` compares predictions: small enough to run on two cores."""

from dataclasses import dataclass
from typing import Any

from torch_lms.targets import Setting


@dataclass(frozen=True)
class Case:
    """A step that can be run here."""

    workload: str
    setting: Setting

    def __str__(self) -> str:
        setting = self.setting
        options = [str(value) for value in setting.options.values()]
        mode = "inference" if setting.is_inference else setting.optimizer
        return ", ".join([self.workload, *options, f"{setting.size}, batch {setting.batch}", str(mode)])


def _case(workload: str, size: int, batch: int, optimizer: str | None = "sgd", **options: Any) -> Case:
    """A training step; an inference call where ``optimizer`` is None."""
    setting = Setting(
        size=size, batch=batch, options=options, optimizer=optimizer, device="cpu", is_inference=optimizer is None
    )
    return Case(workload, setting)


MEMORY = (
    _case("resnet50", 64, 4),
    _case("resnet50", 96, 2, "adamw"),
    _case("resnet50", 128, 2, None),
    _case("resnet50", 96, 4, model="resnet18"),
    _case("resnet50", 64, 8, "adam", model="resnet18"),
    _case("resnet50", 128, 2, "rmsprop", model="mobilenetv2_100"),
    _case("resnet50", 96, 2, model="densenet121"),
    _case("resnet50", 96, 2, "adagrad", model="efficientnet_b0"),
    _case("googlenet", 96, 4),
    _case("googlenet", 64, 8, "adamw"),
    _case("googlenet", 128, 2, None),
    _case("deeplabv3plus", 129, 2, backbone="mobilenetv2_100"),
    _case("deeplabv3plus", 97, 2, "adamw", backbone="mobilenetv2_100"),
    _case("deeplabv3plus", 97, 2, backbone="resnet50"),
    _case("deeplabv3plus", 65, 2, backbone="resnet50", output_stride=8),
    _case("deeplabv3plus", 65, 2, backbone="xception65"),
    _case("unet3d", 32, 1),
    _case("unet3d", 32, 2, "adamw"),
    _case("unet3d", 48, 1, channels=16),
    _case("unet3d", 48, 1, None, channels=16),
    _case("gscnn", 64, 2, backbone="resnet50"),
    _case("gpt", 128, 2, "adamw", layers=2, hidden=256, heads=4, vocabulary=1000),
    _case("gpt", 256, 2, layers=4, hidden=256, heads=4, vocabulary=1000),
)
"""Cases whose bytes are compared."""

TIME = (
    _case("resnet50", 192, 4),
    _case("resnet50", 160, 8, model="resnet18"),
    _case("googlenet", 192, 8),
    _case("deeplabv3plus", 257, 2, backbone="mobilenetv2_100"),
    _case("deeplabv3plus", 193, 2, backbone="resnet50"),
    _case("unet3d", 64, 1),
    _case("unet3d", 96, 1, channels=16),
    _case("gpt", 512, 4, "adamw", layers=4, hidden=512, heads=8, vocabulary=5000),
)
"""Cases whose seconds are compared: larger ones, so that operations outweigh what starts them."""

TIME_ON_ACCELERATOR = (
    _case("resnet50", 224, 64),
    _case("resnet50", 224, 64, model="resnet18"),
    _case("deeplabv3plus", 513, 8, backbone="resnet50"),
    _case("unet3d", 128, 1),
    _case("gpt", 1024, 8, "adamw", layers=12, hidden=768, heads=12, vocabulary=50000),
)
"""The same, where a GPU would be through with those at once."""
