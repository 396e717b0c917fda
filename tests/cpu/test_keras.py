"""Keras on PyTorch: trainings at a third of their demand equal Keras's own to the bit, and are planned."""

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import torch_lms

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras")

import keras_trainings as trainings  # noqa: E402
from keras_trainings import BATCH, BATCHES, EPOCHS, Outcome, compiled, data, fitted, weights_of  # noqa: E402
from traffic import one_thread  # noqa: E402

from torch_lms.errors import SessionError, UsageError  # noqa: E402
from torch_lms.keras import LMS, LMSKerasCallback  # noqa: E402
from torch_lms.runtime import api  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "keras_unet.py"
SMALL = {"min_size": "4KiB"}


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    with one_thread():
        yield
    keras.config.set_dtype_policy("float32")
    if torch_lms.is_enabled():
        torch_lms.disable()


@cache
def stock(network: str, policy: str = "float32") -> Outcome:
    keras.config.set_dtype_policy(policy)
    return fitted(compiled(network), network)


@cache
def third(network: str) -> int:
    return trainings.demand_bytes(network) // 3


@pytest.mark.parametrize("is_built_before", [False, True])
@pytest.mark.parametrize("network", trainings.NETWORKS)
def test_a_third_of_the_demand(network: str, is_built_before: bool) -> None:
    expected, limit = stock(network), third(network)
    model = compiled(network) if is_built_before else None
    lms = LMS(limit=limit, **SMALL)
    assert fitted(model or compiled(network), network, [lms]) == expected
    stats = torch_lms.stats()
    assert stats.peak_resident_bytes <= limit
    assert stats.planned_steps >= BATCHES  # of EPOCHS * BATCHES
    assert stats.evicted_bytes > limit


def test_figures_are_in_the_logs() -> None:
    x, y = data("cnn")
    model, lms, seen = compiled("cnn"), LMS(limit=third("cnn"), **SMALL), []
    after = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(dict(logs)))
    history = model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=[lms, after]).history
    stats = torch_lms.stats()
    assert sum(history["lms_evicted_gb"]) == pytest.approx(stats.evicted_bytes / 1e9, rel=0.1)
    assert sum(history["lms_fetched_gb"]) == pytest.approx(stats.fetched_bytes / 1e9, rel=0.1)
    assert 0 < sum(history["lms_waited_s"]) <= stats.stall_s
    assert history["lms_peak_gb"][-1] == stats.peak_resident_bytes / 1e9
    assert len(seen) == EPOCHS * BATCHES
    assert all("lms_peak_gb" in logs for logs in seen)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision(policy: str) -> None:
    expected = stock("cnn", policy)
    keras.config.set_dtype_policy(policy)
    LMS(limit=third("cnn"), **SMALL)
    assert fitted(compiled("cnn"), "cnn") == expected
    stats = torch_lms.stats()
    assert stats.evicted_bytes > 0
    assert stats.planned_steps >= BATCHES


def test_each_batch_is_one_step() -> None:
    """Also one that a loss scale skips, and one whose optimizer wraps another."""
    model = compiled("cnn")
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), initial_scale=float("inf")), "mse")
    model.train_on_batch(*batch(0))
    LMS(limit="1GB", **SMALL)
    before = [weight.copy() for weight in model.get_weights()]
    for number in range(3):
        model.train_on_batch(*batch(number))
    assert torch_lms.stats().steps == 3
    assert all((a == b).all() for a, b in zip(before, model.get_weights(), strict=True))
    model.evaluate(*batch(0), verbose=0)
    model.predict_on_batch(batch(0)[0])
    assert torch_lms.stats().steps == 5


def batch(number: int) -> tuple[Any, Any]:
    x, y = data("cnn")
    part = slice(number * BATCH, (number + 1) * BATCH)
    return x[part], y[part]


def test_save_load_and_go_on(tmp_path: Path) -> None:
    def training() -> tuple[Outcome, Outcome]:
        model = compiled("cnn")
        fitted(model, "cnn")
        model.save(tmp_path / "model.keras")
        kept = fitted(model, "cnn")
        keras.utils.set_random_seed(1)
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        return kept, fitted(loaded, "cnn")

    expected = training()
    LMS(limit=third("cnn"), **SMALL)
    assert training() == expected


def test_train_on_batch() -> None:
    def training() -> tuple[list[Any], bytes]:
        model = compiled("cnn")
        losses = [model.train_on_batch(*batch(number % BATCHES)) for number in range(2 * BATCHES)]
        return [*losses, model.test_on_batch(*batch(0))], weights_of(model)

    expected = training()
    LMS(limit=third("cnn"), **SMALL)
    assert training() == expected
    assert torch_lms.stats().planned_steps >= BATCHES


def test_jit_compile_runs_eagerly(caplog: pytest.LogCaptureFixture) -> None:
    expected = stock("cnn")
    LMS(limit=third("cnn"), **SMALL)
    assert fitted(compiled("cnn", jit_compile=True), "cnn") == expected
    assert [record.message for record in caplog.records if "jit_compile" in record.message] == [
        "jit_compile=True is ignored while LMS is on, and the model runs eagerly: a compiled training step has to fit "
        "on the device as a whole"
    ]
    model = compiled("cnn", jit_compile=True)
    assert not model.jit_compile
    torch_lms.disable()
    assert model.jit_compile


def test_tflms_tunables_are_passed_on() -> None:
    expected = stock("cnn")
    LMS(limit=third("cnn"), swapout_threshold=1, swapin_ahead=1, **SMALL)
    assert fitted(compiled("cnn"), "cnn") == expected
    stats = torch_lms.stats()
    assert api.current_session().options.policy == "tflms2"
    assert stats.planned_steps >= BATCHES


def test_names_of_version_1(caplog: pytest.LogCaptureFixture) -> None:
    expected = stock("cnn")
    lms = LMSKerasCallback({"training"}, n_tensors=8, lb=3, swap_branches=True, limit=third("cnn"), **SMALL)
    assert "optimizer_scopes_override, swap_branches" in caplog.text
    assert fitted(compiled("cnn"), "cnn", [lms]) == expected
    assert api.current_session().options.policy == "tflms2"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: LMS(swapin_behind=1), "swapin_behind"),
        (lambda: LMS(sync_mode=4), "sync_mode must be from 0 to 3"),
        (lambda: LMS(swapin_ahead=1, policy="planned"), "tflms2"),
        (lambda: LMSKerasCallback(swapin_ahead=1), "one version"),
    ],
)
def test_bad_tunables_leave_lms_off(make: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make()
    assert not torch_lms.is_enabled()


def test_a_session_that_is_on_is_taken_as_it_is() -> None:
    torch_lms.enable(limit="50MB")
    LMS()
    assert torch_lms.stats().limit_bytes == 50_000_000
    with pytest.raises(SessionError):
        LMS(swapin_ahead=1)


def child(program: str, backend: str = "torch") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KERAS_BACKEND": backend}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_other_backends_are_refused() -> None:
    refused = child("from torch_lms.keras import LMS; LMS()", backend="numpy")
    assert "LMS works on Keras's PyTorch backend" in refused.stderr
    assert "set KERAS_BACKEND=torch" in refused.stderr
    assert refused.returncode == 1


def test_a_keras_that_is_not_there_is_named() -> None:
    missing = child("import sys; sys.modules['keras'] = None; import torch_lms.keras")
    assert "pip install 'torch-lms[keras]'" in missing.stderr


def test_the_example_runs_and_needs_no_callback() -> None:
    """LMS is turned on before Keras is imported, by the command line; the example's callback takes that session."""
    command = [sys.executable, "-m", "torch_lms", "run", "--limit", "20MB", "--stats", "-", str(EXAMPLE), "--quick"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert ended.returncode == 0, ended.stderr
    assert '"planned_steps": 0' not in ended.stdout
    assert "lms_evicted_gb" in ended.stdout
