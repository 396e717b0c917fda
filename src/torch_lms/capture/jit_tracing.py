"""``torch.jit.trace`` records the parts of a convolution, and not the convolution. Under a dispatch mode it sees none.

So what was computed would be a constant of the graph: the part that it would have seen is recorded here. The native
interposer lets a convolution that is traced pass, and sees its part.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.jit._trace import TracerWarning

_C: Any = torch._C
_CONVOLUTION = torch.ops.aten.convolution.default
_PART = "aten::_convolution"


def is_traced_in_parts(func: Any) -> bool:
    """Whether ``torch.jit.trace`` is at work, and waits for the part of ``func``."""
    return func is _CONVOLUTION and _C._get_tracing_state() is not None


def run_traced(run: Callable[[], torch.Tensor], args: tuple[Any, ...]) -> torch.Tensor:
    """The result of ``run``, a convolution of ``args``, which is recorded.

    Sizes that ``run`` asks for are tensors meanwhile, of whose values PyTorch warns. They end in no result.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TracerWarning)
        result = run()
    graph = _C._get_tracing_state().graph()
    settings = torch.backends.cudnn
    flags = (settings.benchmark, settings.deterministic, settings.enabled, settings.allow_tf32)
    node = graph.create(_PART, [_value_of(graph, arg) for arg in (*args, *flags)], 1)
    graph.insertNode(node)
    node.output().inferTypeFrom(result)
    _C._set_value_trace(result, node.output())
    return result


def _value_of(graph: Any, arg: Any) -> Any:
    """A tensor's value in ``graph``, or a constant."""
    return _C._get_value_trace(arg) if isinstance(arg, torch.Tensor) else graph.insertConstant(arg)
