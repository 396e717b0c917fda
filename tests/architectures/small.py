"""Configurations of transformers made small, by the names of their settings."""

import re
from typing import Any

from transformers import PretrainedConfig

_AT_MOST = (
    (r"n_group|topk_group", 1),
    (r".*experts_per_tok.*|.*top_?k.*|num_key_value_heads|num_kv_heads", 2),
    (r".*heads|n_head|(num_|n_).*experts", 4),
    (r".*intermediate_size|d_ff|.*ffn_dim|n_inner|mlp_dim", 128),
    (r".*head_dim", 16),
    (r"hidden_size|d_model|n_embd|n_embed|embedding_size|dim|.*_dim|.*hidden_size", 64),
    (r"num_.*layers?|n_layers?|.*_layers|depth|.*_depth|num_.*blocks", 2),
    (r".*vocab.*", 300),
    (r".*max_position.*|n_positions|n_ctx|max_sequence_length", 256),
    (r".*_token_id|.*_token_index", 99),
    (r"image_size", 64),
)
"""What settings may be, the first whose name fits counts."""

_EACH_AT_MOST = (
    (r".*depth.*|.*layers|.*blocks", 1),
    (r".*heads", 2),
    (r".*hidden_sizes|.*embed_dim.*|.*channels", 32),
)
"""The same of lists of numbers, one for each stage."""


def make_small(configuration: PretrainedConfig) -> PretrainedConfig:
    """``configuration``, and those that it contains, with fewer and smaller layers."""
    for name, value in list(vars(configuration).items()):
        if isinstance(value, PretrainedConfig):
            make_small(value)
            continue
        most = _most(name, value)
        if most is not None:
            try:
                setattr(configuration, name, _limited(value, most))
            except Exception:
                continue  # it checks its settings, and refuses this one
    kinds = getattr(configuration, "layer_types", None)
    if kinds and hasattr(configuration, "num_hidden_layers"):
        configuration.layer_types = list(kinds)[: configuration.num_hidden_layers]
    return configuration


def _most(name: str, value: Any) -> int | None:
    is_list = isinstance(value, list | tuple) and value and all(type(each) is int for each in value)
    if not is_list and type(value) is not int:
        return None
    table = _EACH_AT_MOST if is_list else _AT_MOST
    return next((most for pattern, most in table if re.fullmatch(pattern, name)), None)


def _limited(value: Any, most: int) -> Any:
    return min(value, most) if isinstance(value, int) else type(value)(min(each, most) for each in value)
