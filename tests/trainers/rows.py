"""The rows of the table."""

from dataclasses import dataclass, field
from typing import Any

LIGHTNING = ("lightning",)
HUGGING_FACE = ("transformers", "accelerate")

MIN_SIZE = 4096
"""Bytes of the smallest page."""


@dataclass(frozen=True)
class Row:
    """A training.

    Attributes:
        title: for people.
        training: a module of this package, and a function there that takes a ``Run`` and returns what must be equal.
        packages: those whose versions the row names, without which it is left out.
        arguments: further ones of the function.
        has_callback: whether the training turns LMS on by a callback; else ``torch-lms run`` does.
        launcher: starts the ranks, as a command.
        ranks: how many there are.
        in_ci: whether CI runs it.
        needs_source: whether it needs a checkout of the library.
        min_size: bytes of its smallest page.
    """

    title: str
    training: str
    packages: tuple[str, ...]
    arguments: dict[str, Any] = field(default_factory=dict)
    has_callback: bool = False
    launcher: tuple[str, ...] = ()
    ranks: int = 1
    in_ci: bool = False
    needs_source: bool = False
    min_size: int = MIN_SIZE


def _by_keras(title: str, network: str, **options: Any) -> Row:
    return Row(title, "by_keras:fitted_and_saved", ("keras",), {"network": network}, has_callback=True, **options)


def _by_lightning(title: str, **options: Any) -> Row:
    ranks = options.get("devices", 1)
    in_ci = options.pop("in_ci", False)
    return Row(title, "by_lightning:fitted", LIGHTNING, options, has_callback=True, ranks=ranks, in_ci=in_ci)


def _by_hugging_face(title: str, training: str, *packages: str, **options: Any) -> Row:
    return Row(title, f"by_transformers:{training}", (*HUGGING_FACE, *packages), has_callback=True, **options)


def _two_ranks(title: str, *launcher: str, package: str = "torch") -> Row:
    return Row(title, "by_launchers:data_parallel", (package,), launcher=launcher, ranks=2)


def _by_optimizer(title: str, optimizer: str) -> Row:
    package = optimizer.partition(":")[0].partition(".")[0]
    return Row(title, "by_optimizers:trained", (package,), {"optimizer": optimizer})


ROWS = {
    "keras-cnn": _by_keras("Keras CNN: fit, evaluate, predict, save, load, fit", "cnn", in_ci=True),
    "keras-unet": _by_keras("Keras U-Net: the same", "unet"),
    "lightning": _by_lightning("Lightning, fp32", in_ci=True),
    "lightning-bf16": _by_lightning("Lightning, bf16, gradients of 2 batches", precision="bf16-mixed", accumulate=2),
    "lightning-ddp": _by_lightning("Lightning, ddp x 2", devices=2),
    "lightning-resume": _by_lightning("Lightning, resumed from a checkpoint", is_resumed=True),
    "gpt2": _by_hugging_face("HF Trainer, GPT-2: accumulation, checkpointing, evaluation, save, resume", "gpt2"),
    "llama-lora": _by_hugging_face("HF Trainer, Llama with LoRA, bf16", "llama_lora", "peft"),
    "qlora": _by_hugging_face("HF Trainer, Llama in 4 bits with LoRA (QLoRA)", "qlora", "peft", "bitsandbytes"),
    "bert": _by_hugging_face("HF Trainer, BERT", "bert", in_ci=True),
    "vit": _by_hugging_face("HF Trainer, ViT", "vit"),
    "diffusers-unet": Row("diffusers U-Net: trained, saved, sampled", "by_diffusers:unet", ("diffusers",)),
    "timm": Row("timm's train.py", "by_timm:train_script", ("timm", "torchvision"), needs_source=True),
    "ultralytics": Row(
        "ultralytics, YOLO11n",
        "by_ultralytics:yolo",
        ("ultralytics", "torchvision"),
        min_size=16384,  # its loss picks as many places as there are objects: no two steps have equal pages below that
    ),
    "monai": Row("MONAI 3D U-Net, sliding windows", "by_monai:unet", ("monai",)),
    "torchao-8bit": _by_optimizer("torchao's AdamW8bit, resumed", "torchao.optim:AdamW8bit"),
    "torchao-4bit": _by_optimizer("torchao's AdamW4bit, resumed", "torchao.optim:AdamW4bit"),
    "bitsandbytes": _by_optimizer("bitsandbytes' AdamW8bit, resumed", "bitsandbytes.optim:AdamW8bit"),
    "lion": _by_optimizer("Lion of lion_pytorch, resumed", "lion_pytorch:Lion"),
    "schedulefree": _by_optimizer("AdamW of schedulefree, resumed", "schedulefree:AdamWScheduleFree"),
    "prodigy": _by_optimizer("Prodigy of prodigyopt, resumed", "prodigyopt:Prodigy"),
    "torchrun": _two_ranks("torchrun x 2, DDP", "torchrun", "--standalone", "--nproc-per-node", "2", "-m"),
    "accelerate": _two_ranks(
        "accelerate launch x 2, DDP",
        *("accelerate", "launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"),
        *("--mixed_precision", "no", "--dynamo_backend", "no", "-m"),
        package="accelerate",
    ),
    "lightning-launched": Row(
        "torch-lms run of a script whose Lightning starts 2 ranks",
        "by_lightning:fitted",
        LIGHTNING,
        {"devices": 2},
        ranks=2,
    ),
}
"""By name."""
