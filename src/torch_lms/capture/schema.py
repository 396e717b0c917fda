"""What an operator reads and writes, from its schema and from a list of those whose schema does not tell all (N4)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

_UNDECLARED_WRITES: dict[str, tuple[str, ...]] = {
    "aten::native_batch_norm": ("running_mean", "running_var"),
    "aten::_batch_norm_impl_index": ("running_mean", "running_var"),
    "aten::batch_norm": ("running_mean", "running_var"),
    "aten::batch_norm_update_stats": ("running_mean", "running_var"),
    "aten::batch_norm_gather_stats": ("running_mean", "running_var"),
    "aten::batch_norm_gather_stats_with_counts": ("running_mean", "running_var"),
    "aten::cudnn_batch_norm": ("running_mean", "running_var"),
    "aten::miopen_batch_norm": ("running_mean", "running_var"),
    "aten::mkldnn_rnn_layer_backward": ("workspace",),
    "aten::_cudnn_rnn": ("weight_buf", "dropout_state"),
    "aten::_cudnn_rnn_backward": ("reserve", "dropout_state"),
    "aten::miopen_rnn": ("dropout_state",),
    "aten::miopen_rnn_backward": ("reserve", "dropout_state"),
}
"""Arguments that an operator writes although its schema does not say so. A test compares the bytes of every argument
before and after; those of CUDA and ROCm are listed on suspicion, which costs a copy at most."""

_WRITES_NO_BYTES = frozenset({"aten::set_"})
"""Operators whose schema has them write, but which give a tensor another storage, and touch no byte of either."""

_UNDECLARED_VIEWS = frozenset(
    {
        "aten::_unsafe_view",
        "aten::lift",
        "aten::lift_fresh",
        "aten::unsafe_split",
        "aten::unsafe_split_with_sizes",
    }
)
"""Operators whose result shares the argument's storage although their schema does not say so."""


_KEPT_ARGS: dict[str, tuple[str, ...]] = {
    "aten::quantize_per_channel": ("scales", "zero_points"),
    "aten::_make_per_channel_quantized_tensor": ("scale", "zero_point"),
    "aten::_empty_per_channel_affine_quantized": ("scales", "zero_points"),
    "aten::_lazy_clone": ("self",),
}
"""Arguments whose memory PyTorch goes on using, unseen, after the operation: a quantizer's, a copy on write's."""

_KEPT_RESULTS = frozenset(
    {
        "aten::q_per_channel_scales",
        "aten::q_per_channel_zero_points",
        "aten::_lazy_clone",
        "aten::_pack_padded_sequence",
    }
)
"""Operators whose results PyTorch goes on using, unseen, after the operation."""

_LEFT_WHOLE = ("aten::linalg_", "aten::nuclear_norm", "aten::pinverse", "aten::norm")
"""Composite operators that take other routines for their parts while a mode is on (N22)."""

_REPEATABLE = frozenset(
    f"aten::{name}"
    for name in (
        *("convolution", "mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "embedding"),
        *("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update", "cudnn_batch_norm"),
        *("_native_batch_norm_legit_no_training", "_batch_norm_no_update"),
        *("native_layer_norm", "native_group_norm", "_softmax", "_log_softmax", "glu", "_prelu_kernel"),
        *("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool3d"),
        *("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "mean", "sum", "amax", "amin", "var_mean"),
        *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d"),
        *("upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d"),
        *("constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d"),
        *("replication_pad1d", "replication_pad2d", "replication_pad3d", "flip", "roll", "index_select", "gather"),
        *("cat", "stack", "copy_", "_to_copy", "fill_", "zero_", "zeros", "ones", "full", "zeros_like", "ones_like"),
        *("full_like", "new_zeros", "new_full", "arange", "pixel_shuffle", "pixel_unshuffle", "tril", "triu"),
        *("nll_loss_backward", "nll_loss2d_backward", "_scaled_dot_product_flash_attention_for_cpu"),
    )
)
"""Operators that give the same bits whenever they are called with the same, beside those that treat each element by
itself. None that adds up in the order in which threads arrive (N16)."""

_MADE_OF_OTHERS = frozenset(
    f"aten::{name}"
    for name in (
        *("gru_cell", "lstm_cell", "rnn_relu_cell", "rnn_tanh_cell"),
        *("_thnn_differentiable_gru_cell_backward", "_thnn_differentiable_lstm_cell_backward"),
        "_thnn_fused_lstm_cell_backward",
        *("_weight_norm", "_weight_norm_differentiable_backward", "norm_except_dim"),
        *("dropout_", "alpha_dropout_", "feature_dropout", "feature_dropout_", "feature_alpha_dropout_"),
    )
)
"""Composite operators that no list of PyTorch's vouches for, and whose kernels call other operators alone."""

FINDING = frozenset(
    f"aten::{name}"
    for name in ("nonzero", "_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive")
)
"""Operators that tell places: of what is not zero, or of what differs from the rest."""

_GROWING = FINDING | {
    f"aten::{name}" for name in ("bincount", "repeat_interleave", "diag_embed", "block_diag", "_cdist_forward")
}
"""Operators whose results may be far larger than sizes and numbers among their arguments tell."""

_RETYPING = frozenset({"aten::view.dtype", "aten::set_"})
"""Operators that show a storage as another type."""

_OBJECT = "__torch__.torch.classes."

_NUMBERS = frozenset({"bool", "int", "float", "number"})
"""Types of results that are no tensors, nor made of any."""

_EMPTY = frozenset({"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty"})

_TRUSTED = frozenset({"aten", "prim", "prims", "quantized", "mkldnn", "torchvision"})
"""Namespaces whose schemas are known to tell what is written, but for the lists above."""

_WITHOUT_TENSORS = frozenset({"profiler"})
"""Namespaces whose operators neither take nor give tensors, nor objects that hold any."""

_WHOLE_ON_GPUS = frozenset({"aten::_fused_rms_norm"})
"""Operators that are made of others on the CPU alone: on a GPU they have a kernel, which rounds in another way."""

_COLLECTIVES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem"})


@dataclass(frozen=True, slots=True)
class OpInfo:
    """What must be known of an operator to run it on pages.

    Attributes:
        name: as in "aten::add.Tensor".
        view: it only makes views, or nothing: no byte is touched.
        writes: (position, name) of the arguments it writes.
        creates: its results may have bytes that its arguments have not.
        empty: its result is memory as it came, and C++ may fill it without an operation that shows it.
        seeded: it draws random numbers.
        composite: it is made of other operators, which can be run one by one.
        reads_bytes: it is, too, but may read bytes besides, where no operator shows it.
        opaque: a higher-order operator, or one from a library that we do not know: all its tensors are held while it
            runs, and taken for written.
        keeps: (position, name) of the arguments whose memory PyTorch goes on using, unseen, afterwards.
        keeps_results: whether the same is true of its results.
        has_object: it takes or gives an object of C++, which may go on using any tensor.
        collective: it communicates, and may go on after it has returned.
        list_args: positions of arguments that are lists of tensors, for operators that treat each index by itself.
        retypes: its result may show a storage as another type than before.
        pointwise: it treats each element by itself.
        repeatable: called again with the same, it gives the same bits.
        searches: it chooses an algorithm by the memory that it finds free (N28).
        is_simple: nothing need be known of its tensors but which storages they are views of.
        numbers_matter: the sizes of its results may depend on numbers among its arguments.
        grows: these may be far larger than sizes and numbers among its arguments tell.
    """

    name: str
    view: bool
    writes: tuple[tuple[int, str], ...]
    creates: bool
    empty: bool
    seeded: bool
    composite: bool
    reads_bytes: bool
    opaque: bool
    keeps: tuple[tuple[int, str], ...]
    keeps_results: bool
    has_object: bool
    collective: bool
    list_args: tuple[int, ...]
    retypes: bool
    pointwise: bool
    repeatable: bool
    searches: bool
    is_simple: bool = field(init=False)
    numbers_matter: bool = field(init=False)
    grows: bool = field(init=False)

    def __post_init__(self) -> None:
        is_simple = not (self.opaque or self.keeps or self.keeps_results or self.has_object)
        object.__setattr__(self, "is_simple", is_simple)
        # Those of an optimizer change with each step.
        numbers_matter = not (self.pointwise or self.list_args or self.packet == "aten::scalar_tensor")
        object.__setattr__(self, "numbers_matter", numbers_matter)
        object.__setattr__(self, "grows", self.packet in _GROWING)

    @property
    def packet(self) -> str:
        """The name without that of the overload, as in "aten::add"."""
        return self.name.split(".")[0]

    def written_args(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The values of the arguments that are written."""
        return _picked(self.writes, args, kwargs)

    def kept_args(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The values of the arguments that are kept."""
        return _picked(self.keeps, args, kwargs)


def _picked(chosen: tuple[tuple[int, str], ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    values = [args[position] if position < len(args) else kwargs.get(name) for position, name in chosen]
    return [value for value in values if value is not None]


@cache
def describe(func: Any) -> OpInfo:
    """The ``OpInfo`` of an ``OpOverload`` or a higher-order operator."""
    return _describe(func) if _is_known(func) else _opaque(func)


def _is_known(func: Any) -> bool:
    return isinstance(func, torch._ops.OpOverload) and func.namespace in _TRUSTED | _WITHOUT_TENSORS


def _describe(func: torch._ops.OpOverload) -> OpInfo:
    schema = func._schema
    undeclared = _UNDECLARED_WRITES.get(schema.name, ())
    kept = _KEPT_ARGS.get(schema.name, ())
    writes = []
    keeps = []
    for position, argument in enumerate(schema.arguments):
        is_declared = argument.alias_info is not None and argument.alias_info.is_write
        if is_declared or argument.name in undeclared:
            writes.append((position, argument.name))
        if argument.name in kept:
            keeps.append((position, argument.name))
    aliases = any(result.alias_info is not None and not result.alias_info.is_write for result in schema.returns)
    is_bare = func.namespace in _WITHOUT_TENSORS
    is_view = is_bare or (not writes and (aliases or schema.name in _UNDECLARED_VIEWS))
    has_new_result = any(result.alias_info is None and str(result.type) not in _NUMBERS for result in schema.returns)
    is_made_of_others = is_composite(func.name())
    reads_bytes = is_made_of_others and not is_view and _may_read_bytes(func)
    return OpInfo(
        name=f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name,
        view=is_view,
        writes=() if schema.name in _WRITES_NO_BYTES else tuple(writes),
        creates=is_made_of_others or (has_new_result and not is_view),
        empty=schema.name in _EMPTY,
        seeded=torch.Tag.nondeterministic_seeded in func.tags,
        composite=is_made_of_others and not reads_bytes and not schema.name.startswith(_LEFT_WHOLE),
        reads_bytes=reads_bytes,
        opaque=False,
        keeps=tuple(keeps),
        keeps_results=schema.name in _KEPT_RESULTS,
        has_object=_OBJECT in str(schema) and not is_bare,
        collective=False,
        list_args=_list_args(schema),
        retypes=schema.name in _RETYPING or func.name() in _RETYPING,
        pointwise=torch.Tag.pointwise in func.tags,
        repeatable=_is_repeatable(func),
        searches="convolution" in schema.name,
    )


def is_composite(name: str) -> bool:
    """Whether the operator of that name is made of others, and has no kernel of its own on any device."""
    if not torch._C._dispatch_has_kernel(name):  # one of TorchScript's: it asks a tensor for its size or layout
        return False
    return bool(
        _has_kernel(name, "CompositeImplicitAutograd") and not _has_kernel(name, "CPU") and name not in _WHOLE_ON_GPUS
    )


def is_checked(name: str) -> bool:
    """Whether ``torch.func.vmap`` has a rule for a composite operator, and so sees all that it does."""
    return any(_has_kernel(name, rule) for rule in ("FuncTorchBatched", "FuncTorchBatchedDecomposition"))


def _may_read_bytes(func: torch._ops.OpOverload) -> bool:
    """Whether no list of PyTorch's says that a composite operator is made of other operators alone.

    There are three: the rules of ``torch.func.vmap``; decompositions in Python; and the documentation, since what is
    documented is tested for it.
    """
    schema = func._schema
    if schema.name in _MADE_OF_OTHERS:
        return False
    if is_checked(func.name()) or torch._C.DispatchKey.CompositeImplicitAutograd in func.py_kernels:
        return False
    if any(argument.is_out for argument in schema.arguments) or _is_documented(schema.name):
        return False
    return _has_tensors(schema.arguments) and _has_tensors(schema.returns)


def _has_tensors(values: list[Any]) -> bool:
    """Whether a tensor, or a list of them, is among arguments or results of a schema."""
    return any("Tensor" in str(value.type) for value in values)


def _is_documented(name: str) -> bool:
    name = name.removeprefix("aten::")
    places: list[tuple[Any, str]] = [(torch, name), (torch.Tensor, name), (torch.nn.functional, name)]
    family, _, short = name.partition("_")
    if family in ("fft", "linalg", "special"):
        places.append((getattr(torch, family), short))
    return any(getattr(owner, public).__doc__ for owner, public in places if hasattr(owner, public))


_has_kernel: Callable[[str, str], bool] = torch._C._dispatch_has_kernel_for_dispatch_key


def _is_repeatable(func: torch._ops.OpOverload) -> bool:
    schema = func._schema
    if torch.Tag.nondeterministic_seeded in func.tags or any(argument.is_out for argument in schema.arguments):
        return False
    return schema.name in _REPEATABLE or torch.Tag.pointwise in func.tags


def _list_args(schema: Any) -> tuple[int, ...]:
    """Positions of lists, for `_foreach_`, `_fused_` and the gradient scaler: each index is computed alone (N10)."""
    name = schema.name.removeprefix("aten::")
    if not name.startswith(("_foreach_", "_fused_", "_amp_foreach_")):
        return ()
    if any(argument.name == "scalars" and str(argument.type) == "Tensor" for argument in schema.arguments):
        return ()  # one tensor that holds a number for each index
    found = []
    for position, argument in enumerate(schema.arguments):
        if str(argument.type) in ("List[Tensor]", "Tensor[]"):
            found.append(position)
    return tuple(found)


def _opaque(func: Any) -> OpInfo:
    return OpInfo(
        str(func),
        view=False,
        writes=(),
        creates=True,
        empty=False,
        seeded=True,
        composite=False,
        reads_bytes=False,
        opaque=True,
        keeps=(),
        keeps_results=False,
        has_object=_OBJECT in str(getattr(func, "_schema", "")),
        collective=getattr(func, "namespace", "") in _COLLECTIVES,
        list_args=(),
        retypes=False,
        pointwise=False,
        repeatable=False,
        searches=False,
    )
