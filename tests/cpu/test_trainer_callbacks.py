"""Trainings by Lightning and transformers with our callbacks: equal to those without LMS, planned."""

import importlib
import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from bits import same_bits

import torch_lms

EXAMPLE = Path(__file__).parents[2] / "examples" / "lightning_ddp.py"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_LMS_PLANNING", "at-once")


def output_of(command: list[str], environment: dict[str, str], patience_s: float = 200) -> str:
    """What it printed. If it hangs, it and the ranks that it started end, and tell where they were."""
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, start_new_session=True, **pipes) as process:
        try:
            output, errors = process.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGABRT)
            output, errors = process.communicate()
            pytest.fail(f"it hangs:\n{output}\n{errors}")
    assert process.returncode == 0, errors
    return output


@pytest.mark.parametrize("devices", [1, 2])
def test_lightning(devices: int) -> None:
    if find_spec("lightning") is None:
        pytest.skip("Lightning is not installed")

    # Lightning would take a port that is free now, and that another test may have by the time it is used. None is given
    # one below 32768 that does not ask for it.
    port = {"MASTER_PORT": str(20_000 + os.getpid() % 10_000)}

    def run(*options: str) -> str:
        command = [sys.executable, str(EXAMPLE), "--devices", str(devices), *options]
        environment = os.environ | port | {"OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
        return output_of(command, environment)

    def digests(output: str) -> list[str]:
        return sorted(re.findall(r"rank \d: weights [0-9a-f]{16}", output))

    with_lms = run("--limit", "4MB")
    assert digests(with_lms) == digests(run("--without-lms"))
    assert len(digests(with_lms)) == devices
    planned = [int(count) for count in re.findall(r"(\d+) of \d+ steps planned", with_lms)]
    assert len(planned) == devices
    assert min(planned) > 0


def test_figures_of_lightning(tmp_path: Path) -> None:
    if find_spec("lightning") is None:
        pytest.skip("Lightning is not installed")
    from torch_lms.lightning import LMSCallback  # before the rest of Lightning: see the example

    pl = importlib.import_module("lightning.pytorch")

    class Model(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(8)))

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            return self.layers(batch).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    callback = LMSCallback(limit="400kB", min_size=1024)
    trainer = pl.Trainer(
        default_root_dir=tmp_path, accelerator="cpu", max_epochs=1, callbacks=[callback], logger=False, barebones=False
    )
    trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(64, 128), batch_size=16))
    assert trainer.callback_metrics["lms_evicted_gb"] > 0
    assert {"lms_fetched_gb", "lms_waited_s", "lms_peak_gb"} <= set(trainer.callback_metrics)
    assert torch_lms.stats().unpaged_bytes == {}  # also after a checkpoint
    torch_lms.disable()


def test_transformers(tmp_path: Path) -> None:
    """Accumulation, recomputed activations, evaluation, a checkpoint in the midst, and going on from it."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from torch_lms.transformers import LMSCallback

    tokens = torch.randint(0, 300, (48, 32), generator=torch.Generator().manual_seed(1))
    rows = [{"input_ids": row, "labels": row} for row in tokens]

    def trained(callbacks: list[Any], folder: str, resume: bool = False) -> tuple[list[torch.Tensor], Any]:
        transformers.set_seed(0)
        config = transformers.GPT2Config(vocab_size=300, n_positions=32, n_embd=64, n_layer=3, n_head=4)
        arguments = transformers.TrainingArguments(
            str(tmp_path / folder),
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            gradient_checkpointing=True,
            max_steps=12,
            logging_steps=2,
            save_steps=6,
            eval_strategy="steps",
            eval_steps=6,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(
            transformers.GPT2LMHeadModel(config),
            arguments,
            train_dataset=rows,
            eval_dataset=rows[:8],
            callbacks=callbacks,
        )
        checkpoint = str(tmp_path / folder / "checkpoint-6") if resume else None
        trainer.train(resume_from_checkpoint=checkpoint)
        return [value.clone() for value in trainer.model.state_dict().values()], trainer

    expected, _ = trained([], "stock")
    with torch_lms.session(limit="1GB", min_size=1024) as lms:
        trained([], "demand")
        limit = lms.stats().demand_bytes // 3
    for resume in (False, True):
        found, trainer = trained([LMSCallback(limit=limit, min_size=1024)], "lms", resume)
        stats = torch_lms.stats()
        torch_lms.disable()
        assert same_bits(found, expected)
        assert stats.planned_steps > 0
        assert sum(stats.unpaged_bytes.values()) < limit // 10
        logged = [entry for entry in trainer.state.log_history if "lms_evicted_gb" in entry]
        assert logged[-1]["lms_evicted_gb"] > 0
