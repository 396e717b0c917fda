"""Models of transformers by a configuration, without weights: from a folder, or from the hub by name.

The step is that of a trainer: the class that the configuration names, labels of that class's task, no cache.
"""

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from torch_lms.errors import UsageError
from torch_lms.targets.torchvision_operators import define_torchvision_operators

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_HUB_TIMEOUT_S = 10
_TOKENS = 2048
"""The length of a text where none is asked for, unless the model knows only shorter ones."""
_SIDE = 224
_SOUND_SAMPLES = 160_000
"""Ten seconds at 16 kHz."""

_TASKS = {
    "SPEECH_SEQ_2_SEQ": "token",
    "SEQ_TO_SEQ_CAUSAL_LM": "token",
    "IMAGE_TEXT_TO_TEXT": "token",
    "IMAGE_CLASSIFICATION": "sample",
    "AUDIO_CLASSIFICATION": "sample",
    "SEMANTIC_SEGMENTATION": "pixel",
    "MASKED_LM": "token",
    "CAUSAL_LM": "token",
    "SEQUENCE_CLASSIFICATION": "sample",
    "TOKEN_CLASSIFICATION": "token",
}
"""Tasks of transformers, and what has a label there. A configuration that names no class has the first of them that its
type can do: BERT masked words, which is a causal model, too."""


def transformers_model(name: str) -> "TransformersModel":
    """The model of the configuration in a folder, or of that name on the hub.

    Raises:
        UsageError: there is no configuration, transformers does not know it, or transformers is not installed.
    """
    define_torchvision_operators()
    try:
        import transformers
    except ImportError as error:
        raise UsageError(f"hf:{name} needs transformers ({error}): pip install 'torch-lms[transformers]'") from error
    transformers.logging.set_verbosity_error()
    if not Path(name).exists():
        _check_hub(name)
    elif not Path(name, "config.json").is_file():
        raise UsageError(f"hf:{name} has no config.json: expected a folder with one, as save_pretrained makes it")
    return TransformersModel(name)


class TransformersModel:
    """A target: gives the model and a batch for it.

    Attributes:
        optimizer: the one of transformers' Trainer.
        size: what ``--size`` is by default: tokens, the side of an image, or samples of sound.
        options: the fields of the configuration, with what it says.
    """

    optimizer = "adamw"

    def __init__(self, name: str) -> None:
        self._name = name
        config = self._config({})
        self.size = _own_size(config, _model_class(config).main_input_name)
        self.options: dict[str, Any] = config.to_dict()

    def __call__(
        self, size: int | None = None, batch: int = 1, dtype: str | None = None, inference: bool = False, **fields: Any
    ) -> Any:
        """Called as every target is.

        Args:
            dtype: None for what the configuration says.
            inference: whether the batch has no labels.
            fields: of the configuration, instead of what it says.
        """
        import torch

        size = size or self.size
        config = self._config(fields)
        kind = _model_class(config)
        self._fit(config, kind.main_input_name, size)
        model = kind._from_config(config, **({} if dtype is None else {"dtype": getattr(torch, dtype)}))
        inputs = _inputs(model, batch, size)
        labels = _labels(kind.__name__, batch, size)
        if labels is not None and not inference:
            return model, {**inputs, "labels": labels}, lambda outputs: outputs.loss
        if labels is not None and config.is_encoder_decoder:
            inputs["decoder_input_ids"] = labels
        return model, inputs

    def _config(self, fields: dict[str, Any]) -> "PretrainedConfig":
        from transformers import AutoConfig

        try:
            config, unknown = AutoConfig.from_pretrained(
                self._name, trust_remote_code=False, return_unused_kwargs=True, **fields
            )
        except Exception as error:  # OSError, ValueError, and those of the hub's library
            if "trust_remote_code" in str(error):
                raise UsageError(
                    f"hf:{self._name} names a class in code of its own, which is not run: expected a class of "
                    "transformers, or a function that returns the model and its inputs, as FILE.py:FUNCTION"
                ) from error
            reason = " ".join(str(error).split("\n\n")[0].split())
            raise UsageError(f"hf:{self._name} has no configuration that transformers can read: {reason}") from error
        if unknown:
            field = next(iter(unknown))
            near = difflib.get_close_matches(field, config.to_dict())
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise UsageError(f"the configuration of hf:{self._name} has no field {field!r}{hint}")
        if getattr(config, "quantization_config", None):
            raise UsageError(
                f"hf:{self._name} is quantized, which cannot be planned without its weights: expected a "
                "configuration without quantization_config"
            )
        config.use_cache = config.get_text_config().use_cache = False
        return config

    def _fit(self, config: "PretrainedConfig", main_input: str, size: int) -> None:
        """Have ``config`` take inputs of that size; it is refused where there are no positions for so many tokens."""
        vision = getattr(config, "vision_config", config)
        if main_input == "pixel_values" and hasattr(vision, "image_size"):
            vision.image_size = size
        known = _positions(config, main_input)
        if known is not None and size > known:
            raise UsageError(
                f"hf:{self._name} has positions for {known} tokens; got --size {size}. "
                "A configuration with more has a larger max_position_embeddings"
            )


def _check_hub(name: str) -> None:
    """Refuse ``name`` where the hub cannot be asked: its own library would try for half a minute."""
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        if constants.HF_HUB_OFFLINE or isinstance(try_to_load_from_cache(name, "config.json"), str):
            return
        address = f"{constants.ENDPOINT}/{name}/resolve/main/config.json"
        urlopen(Request(address, method="HEAD"), timeout=_HUB_TIMEOUT_S).close()
    except HFValidationError as error:
        raise UsageError(f"there is no folder {name}, seen from {Path.cwd()}, and it is no name on the hub") from error
    except HTTPError:
        return  # it answers: its own library tells what is missing
    except OSError as error:
        raise UsageError(
            f"hf:{name} is no folder here, and {constants.ENDPOINT} cannot be reached ({error}): give a folder with "
            "the model's config.json"
        ) from error


def _model_class(config: "PretrainedConfig") -> "type[PreTrainedModel]":
    """The class that ``config`` names; else one for what models of its type can do."""
    import transformers

    names = list(config.architectures or ())
    names += [by_type[config.model_type] for by_type in map(_mapping, _TASKS) if config.model_type in by_type]
    for name in names:
        kind = getattr(transformers, name, None)
        if kind is not None:
            return kind  # type: ignore[no-any-return]
    if type(config) not in transformers.MODEL_MAPPING:
        raise UsageError(f"transformers has no model for a configuration of type {config.model_type}")
    kind = transformers.MODEL_MAPPING[type(config)]
    return kind[0] if isinstance(kind, tuple) else kind  # type: ignore[no-any-return]


def _mapping(task: str) -> dict[str, str]:
    """The names of the classes for ``task``, by the type of their configuration."""
    from transformers.models.auto import modeling_auto

    return dict(getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES"))


def _own_size(config: "PretrainedConfig", main_input: str) -> int:
    if main_input == "pixel_values":
        side = getattr(getattr(config, "vision_config", config), "image_size", None) or _SIDE
        return int(side if isinstance(side, int) else side[0])
    if main_input == "input_values":
        return _SOUND_SAMPLES
    return min(_TOKENS, _positions(config, main_input) or _TOKENS)


def _positions(config: "PretrainedConfig", main_input: str) -> int | None:
    """How many tokens the model has positions for; None where there is no bound, or no text."""
    if main_input == "input_features":
        return getattr(config, "max_target_positions", None)
    if main_input == "input_ids":
        return getattr(config.get_text_config(), "max_position_embeddings", None)
    return None


def _inputs(model: "PreTrainedModel", batch: int, size: int) -> dict[str, Any]:
    """The model's main input. Of sound that is heard as a spectrum, the length is the configuration's own."""
    import torch

    config: Any = model.config
    name = model.main_input_name
    if name == "input_ids":
        return {name: torch.zeros(batch, size, dtype=torch.long)}
    if name == "pixel_values":
        channels = getattr(getattr(config, "vision_config", config), "num_channels", 3)
        shape: tuple[int, ...] = (batch, channels, size, size)
    elif name == "input_features" and hasattr(config, "max_source_positions"):
        shape = (batch, config.num_mel_bins, 2 * config.max_source_positions)
    elif name == "input_values" and hasattr(config, "num_mel_bins"):
        shape = (batch, config.max_length, config.num_mel_bins)
    elif name == "input_values":
        shape = (batch, size)
    else:
        raise UsageError(
            f"{type(model).__name__} takes {name}, of which transformers does not tell the shape: expected a model of "
            "text, images or sound, or a function that returns the model and its inputs"
        )
    return {name: torch.empty(shape, dtype=model.dtype)}


def _labels(class_name: str, batch: int, size: int) -> Any:
    """Labels for the task of that class; None where the task is not known: then the mean of the outputs is the loss."""
    import torch

    shapes = {"token": (batch, size), "sample": (batch,), "pixel": (batch, size, size)}
    for task, labelled in _TASKS.items():
        if class_name in _mapping(task).values():
            return torch.zeros(shapes[labelled], dtype=torch.long)
    return None
