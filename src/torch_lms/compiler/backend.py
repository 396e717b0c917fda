"""The backend: Inductor, for each piece of a graph by itself."""

import logging
from collections.abc import Sequence
from typing import Any

from torch.fx import GraphModule

from torch_lms.compiler.cut import cut, has_unknown_sizes
from torch_lms.compiler.pieces import compiled_in
from torch_lms.runtime import api

_SHARE = 0.5
"""Of the limit that a piece may need: the next pages come while it runs."""

_log = logging.getLogger("torch_lms")


def lms(
    graph: GraphModule, example_inputs: Sequence[Any], *, mode: str | None = None, options: dict[str, Any] | None = None
) -> Any:
    """Compile with Inductor, in pieces of which each needs at most half of the limit, where it can be cut so.

    A region that is compiled as a whole must be on the device as a whole; between pieces, pages can leave. Cut is
    what autograd makes of the model, forward and backward, before operations whose kernels Inductor does not fuse
    with what comes before. If that is too coarse, it is cut between any two operations.

    The limit is that of the session which is on when the model is called for the first time. Without a session the
    model is compiled as a whole, as ``backend="inductor"`` does.

    Args:
        graph: as Dynamo has captured it.
        example_inputs: its inputs.
        mode: one of Inductor's, as for ``torch.compile``.
        options: of Inductor's.
    """
    import torch._functorch.config as functorch_config
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx

    settings = {**(list_mode_options(mode) if mode else {}), **(options or {})}
    # Buffers that a piece may overwrite are told by their place in the whole graph; the cache knows no pieces.
    with functorch_config.patch(donated_buffer=False, enable_autograd_cache=False):
        return compile_fx(graph, example_inputs, inner_compile=_compile, config_patches=settings or None)


def _compile(graph: GraphModule, example_inputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
    """Compile what autograd made of a model. Called by Inductor, for forward and backward."""
    from torch._inductor.compile_fx import compile_fx_inner

    session = api.current_session()
    if session is None:
        _log.warning('backend="lms" compiles as a whole, since LMS is off: call torch_lms.enable() before')
        return compile_fx_inner(graph, example_inputs, *args, **kwargs)
    if has_unknown_sizes(graph):
        _log.warning('backend="lms" compiles as a whole what has sizes that only its values tell')
        return compile_fx_inner(graph, example_inputs, *args, **kwargs)
    pieces = cut(graph, int(_SHARE * session.room_for_one_op([])))
    if len(pieces) == 1:
        return compile_fx_inner(graph, example_inputs, *args, **kwargs)
    static = set(kwargs.pop("static_input_idxs", ()))
    return compiled_in(graph, example_inputs, pieces, static, *args, **kwargs)
