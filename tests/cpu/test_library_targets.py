"""``torch-lms plan hf:FOLDER``, ``timm:NAME``, ``torchvision:NAME``, and ``--lora``: answers, and clear errors."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from torch_lms.cli.main import group, main
from torch_lms.errors import LmsError, UsageError
from torch_lms.targets import Setting, Traced, define_torchvision_operators, find, torchvision_operators, trace
from torch_lms.trace import demand_curve

LLAMA_8B = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "dtype": "bfloat16",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}
VIT = {"model_type": "vit", "architectures": ["ViTForImageClassification"], "num_hidden_layers": 3}
WHISPER = {
    "model_type": "whisper",
    "architectures": ["WhisperForConditionalGeneration"],
    "d_model": 128,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 512,
    "decoder_ffn_dim": 512,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
}
WAV2VEC2 = {"model_type": "wav2vec2", "num_hidden_layers": 1}
"""It leaves out layers by chance."""
MACHINE = "rtx4090-24gb"

Folder = Callable[..., str]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A function that writes a configuration into a folder, and gives the target's name."""
    define_torchvision_operators()
    pytest.importorskip("transformers", reason="transformers is not installed")

    def write(config: dict[str, Any], **changed: Any) -> str:
        (tmp_path / "config.json").write_text(json.dumps({**config, **changed}))
        return f"hf:{tmp_path}"

    return write


def traced(name: str, **setting: Any) -> Traced:
    return trace(name, find(name), Setting(**setting))


def plan(*arguments: str) -> Result:
    return CliRunner().invoke(group, ["plan", *arguments, "--machine", MACHINE])


def demand(found: Traced) -> int:
    return demand_curve(found.trace).demand_bytes


def test_a_decoder_of_8_billion_parameters_at_8192_tokens(folder: Folder, tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    result = plan(folder(LLAMA_8B), "--size", "8192", "--json", str(target))
    assert result.exit_code == 0, result.output or result.exception
    (found,) = json.loads(target.read_text())
    assert (found["fits_without"], found["fits_with"]) == (False, True)
    # weights, gradients and both moments of AdamW, in bfloat16
    assert found["demand_bytes"] > 4 * 2 * 8.03e9
    assert found["step_s"] > found["step_s_unlimited"] > 6 * 8.03e9 * 8192 / 330e12


def test_adapters_need_no_gradients_and_state_of_the_whole(folder: Folder) -> None:
    pytest.importorskip("peft", reason="peft is not installed")
    name = folder(LLAMA_8B, num_hidden_layers=4)
    full, lora = traced(name, size=512), traced(name, size=512, lora=16)
    layer = 16 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336))
    assert demand(lora) < demand(full) / 2
    assert 0 < lora.gradient_bytes < full.gradient_bytes / 100
    assert lora.gradient_bytes == 4 * layer * 4, "four layers, in float32"


def test_an_image_model_takes_sides(folder: Folder) -> None:
    name = folder(VIT)
    small, large = traced(name, batch=8), traced(name, size=448, batch=8)
    assert small.items == 8 * 224**2
    assert large.items == 8 * 448**2
    assert demand(large) > 2 * demand(small)


def test_a_speech_model_hears_sound_and_writes_tokens(folder: Folder) -> None:
    name = folder(WHISPER)
    short, long = traced(name, size=64), traced(name, size=448)
    assert short.items == long.items == 3000, "frames of half a minute"
    assert demand(long) > demand(short)


def test_labels_are_left_out_of_inference(folder: Folder) -> None:
    name = folder(LLAMA_8B, num_hidden_layers=2)
    ops = [op.name for op in traced(name, size=256, is_inference=True).trace.ops]
    assert ops
    assert not any("softmax" in op and "attention" not in op for op in ops)
    assert traced(folder(WHISPER), is_inference=True).items == 3000, "its decoder is given tokens nonetheless"


def test_the_dtype_is_the_configurations_unless_another_is_asked_for(folder: Folder) -> None:
    name = folder(LLAMA_8B, num_hidden_layers=2)
    assert traced(name, size=64, dtype="float32").gradient_bytes == 2 * traced(name, size=64).gradient_bytes


def test_fields_of_a_configuration_can_be_set_and_blocks_checkpointed(folder: Folder) -> None:
    name = folder(LLAMA_8B)
    small = {"num_hidden_layers": 4, "vocab_size": 1024}
    kept = traced(name, size=32768, options=small)
    checkpointed = traced(name, size=32768, options=small, checkpoints=True)
    assert demand(checkpointed) < 0.7 * demand(kept)


def test_blocks_are_recomputed_by_the_kernels_of_a_gpu(folder: Folder) -> None:
    """Attention with dropout has another kernel there: what a block saves must be what it recomputes."""
    config = {"model_type": "bert", "architectures": ["BertForMaskedLM"], "num_hidden_layers": 2}
    assert traced(folder(config), checkpoints=True, device="cuda").gradient_bytes > 0


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("timm:resnet18", 300),
        ("timm:vit_tiny_patch16_224", 384),
        ("torchvision:resnet18", 300),
        ("torchvision:vit_b_16", 256),
        ("torchvision:lraspp_mobilenet_v3_large", 300),
        ("torchvision:r3d_18", 80),
    ],
)
def test_models_of_vision_libraries(name: str, size: int) -> None:
    define_torchvision_operators()
    pytest.importorskip(name.split(":")[0])
    found = traced(name, size=size, batch=2)
    frames = 16 if "r3d" in name else 1
    assert found.items == 2 * size**2 * frames
    assert found.gradient_bytes > 0


def test_a_model_that_is_converted_by_its_function() -> None:
    def target() -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(1024, 1024, bias=False), torch.nn.Linear(1024, 1024, bias=False))
        model[0].weight = model[1].weight
        return model.to(torch.bfloat16), torch.empty(4, 1024, dtype=torch.bfloat16)

    assert trace("target", target, Setting()).gradient_bytes == 2 * 1024**2


# -- bad questions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "setting", "said"),
    [
        ({"model_type": "llamma"}, {}, "does not recognize"),
        ({"a": 1}, {}, "model_type"),
        ({"model_type": "patchtst"}, {}, "takes past_values, of which transformers does not tell the shape"),
        ({**LLAMA_8B, "hidden_size": "wide"}, {}, "'hidden_size' expected int"),
        ({**LLAMA_8B, "quantization_config": {"quant_method": "fp8"}}, {}, "is quantized"),
        (LLAMA_8B, {"options": {"num_hidden_layer": 2}}, "did you mean num_hidden_layers"),
        (LLAMA_8B, {"size": 200_000}, "positions for 131072 tokens; got --size 200000"),
        ({"model_type": "strange", "auto_map": {"AutoConfig": "strange.Config"}}, {}, "code of its own, .* not run"),
        (WAV2VEC2, {}, "depends on values"),
    ],
)
def test_configurations_that_cannot_be_planned(
    config: dict[str, Any], setting: dict[str, Any], said: str, folder: Folder
) -> None:
    name = folder(config)
    with pytest.raises(LmsError, match=said):
        traced(name, **setting)


def test_a_configuration_that_cannot_be_traced_is_one_line_at_the_command_line(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["plan", folder(WAV2VEC2), "--machine", MACHINE])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("torch-lms: error: the step depends on values")
    assert "modeling_wav2vec2.py:" in line, "where"
    assert line.endswith("torch-lms run --trace FILE"), "what to do"


def test_a_folder_without_a_configuration(tmp_path: Path, folder: Folder) -> None:
    with pytest.raises(UsageError, match=r"has no config\.json: expected a folder with one"):
        find(f"hf:{tmp_path}")
    (tmp_path / "config.json").write_text('{"model_type":')
    with pytest.raises(UsageError, match="not a valid JSON file"):
        find(f"hf:{tmp_path}")


def test_a_name_where_the_hub_cannot_be_reached(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UsageError, match=r"no folder here, and http://127.0.0.1:9 cannot be reached .*give a folder"):
        find("hf:somebody/something")
    with pytest.raises(UsageError, match="there is no folder a/b/c"):
        find("hf:a/b/c")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("timm:resnet500", "timm has no model 'resnet500'; did you mean resnet50"),
        ("torchvision:googlnet", "did you mean googlenet"),
        ("torchvision:fasterrcnn_resnet50_fpn", "cannot be planned by name"),
    ],
)
def test_names_of_vision_libraries_that_cannot_be_planned(name: str, said: str) -> None:
    define_torchvision_operators()
    pytest.importorskip(name.split(":")[0])
    with pytest.raises(UsageError, match=said):
        find(name)


@pytest.mark.parametrize(
    ("missing", "arguments", "extra"),
    [
        ("transformers", ["hf:."], "transformers"),
        ("timm", ["timm:resnet18"], "workloads"),
        ("torchvision", ["torchvision:resnet18"], "workloads"),
        ("peft", ["examples/own_model.py:segmenter", "--lora", "4"], "transformers"),
    ],
)
def test_a_library_that_is_not_installed_is_named_with_its_extra(
    missing: str, arguments: list[str], extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SystemExit):
        main(["plan", *arguments, "--machine", MACHINE])
    assert f"pip install 'torch-lms[{extra}]'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["_C.so", "_C.cpython-311-x86_64-linux-gnu.so", "_C_stable.so"])
def test_torchvision_s_own_library_comes_first(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it loads, nothing is defined: the same operator defined twice ends the process."""
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / name).touch()
    loaded: list[str] = []
    monkeypatch.setattr(torch.ops, "load_library", lambda path: loaded.append(Path(path).name))
    monkeypatch.setattr(torchvision_operators, "find_spec", lambda _: SimpleNamespace(origin=package / "__init__.py"))
    monkeypatch.setattr(torch.library, "Library", lambda *_: pytest.fail("operators were defined"))
    torchvision_operators.define_torchvision_operators()
    assert loaded == [name]
