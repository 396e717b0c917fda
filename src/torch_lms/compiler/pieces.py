"""What a graph becomes that was compiled in pieces."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch._guards import TracingContext
from torch.fx import Graph, GraphModule, Node

from torch_lms.capture.compiled import tell_new_bytes
from torch_lms.compiler.cut import Piece, storages_of


@dataclass(frozen=True, slots=True)
class Step:
    """A compiled piece.

    Attributes:
        run: takes a list of inputs, and empties it.
        inputs: what it is given.
        outputs: what it returns.
        last_used: those among ``inputs`` that nothing needs after it.
    """

    run: Callable[[list[Any]], Sequence[Any]]
    inputs: list[Node]
    outputs: list[Node]
    last_used: list[Node]


class Pieces:
    """Runs one piece after the other. What none of those to come needs is let go of.

    Args:
        steps: the pieces.
        graph: what they are pieces of.
    """

    def __init__(self, steps: list[Step], graph: GraphModule) -> None:
        self._boxed_call = True  # PyTorch asks for this: it is called with a list, which it empties
        self._steps = steps
        self._inputs = graph.graph.find_nodes(op="placeholder")
        self._results = _results(graph)

    def __call__(self, inputs: list[Any]) -> list[Any]:
        values = dict(zip(self._inputs, inputs, strict=True))
        inputs.clear()
        for step in self._steps:
            given = [values[node] for node in step.inputs]
            for node in step.last_used:
                del values[node]
            values.update(zip(step.outputs, step.run(given), strict=True))
        return [values[result] if isinstance(result, Node) else result for result in self._results]


def compiled_in(
    graph: GraphModule, example_inputs: Sequence[Any], pieces: list[Piece], static: set[int], *args: Any, **kwargs: Any
) -> Pieces:
    """``graph``, compiled by Inductor in ``pieces``.

    Args:
        example_inputs: of the graph, without bytes.
        static: positions of the graph's inputs that are where they were at each call, such as parameters.
        args: more of Inductor's, as ``kwargs``.
    """
    placeholders = graph.graph.find_nodes(op="placeholder")
    fixed = {node for number, node in enumerate(placeholders) if number in static}
    numbers = [node for node in placeholders if not isinstance(node.meta.get("val"), torch.Tensor)]
    last_piece = _last_piece(graph, pieces, numbers)
    examples = dict(zip(placeholders, example_inputs, strict=True))
    visible = _visible_results(graph)
    steps = []
    for number, piece in enumerate(pieces):
        inputs = _inputs(piece, numbers)
        outputs = [node for node in piece if last_piece.get(node, number) > number]
        module = _module(graph, piece, inputs, outputs, visible)
        given = [examples[node] for node in inputs]
        places = [place for place, node in enumerate(inputs) if node in fixed]
        run, strides = _compiled(module, given, *args, static_input_idxs=places, **kwargs)
        examples |= {node: _strided(node.meta["val"], its) for node, its in zip(outputs, strides, strict=True)}
        made = {storage: nbytes for node in outputs for storage, nbytes in storages_of(node).items()}
        known = {storage for node in inputs for storage in storages_of(node)}
        tell_new_bytes(run, sum(nbytes for storage, nbytes in made.items() if storage not in known))
        steps.append(Step(run, inputs, outputs, [node for node in inputs if last_piece[node] == number]))
    _report_strides(graph, examples)
    return Pieces(steps, graph)


def _results(graph: GraphModule) -> Sequence[Any]:
    return cast(Sequence[Any], graph.graph.output_node().args[0])


def _last_piece(graph: GraphModule, pieces: list[Piece], numbers: list[Node]) -> dict[Node, int]:
    """The piece that is the last to need a value; one more than there are for what the graph returns."""
    last: dict[Node, int] = {}
    for number, piece in enumerate(pieces):
        last |= {used: number for node in piece for used in node.all_input_nodes}
    last |= dict.fromkeys(numbers, len(pieces) - 1)
    return last | dict.fromkeys(graph.graph.output_node().all_input_nodes, len(pieces))


def _inputs(piece: Piece, numbers: list[Node]) -> list[Node]:
    """What ``piece`` is given: sizes, from which it knows those of its tensors, and what others have made."""
    inside = set(piece)
    used = (used for node in piece for used in node.all_input_nodes if used not in inside and used.op != "get_attr")
    return list(dict.fromkeys([*numbers, *used]))


def _visible_results(graph: GraphModule) -> set[Node]:
    """Results that the program sees: Inductor must not change their strides."""
    results = _results(graph)
    return {results[place] for place in graph.graph.output_node().meta.get("user_visible_output_idxs", ())}


def _module(
    graph: GraphModule, piece: Piece, inputs: list[Node], outputs: list[Node], visible: set[Node]
) -> GraphModule:
    """``piece`` as a graph of its own."""
    its = Graph()
    copies: dict[Node, Node] = {}
    for node in inputs:
        copies[node] = its.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in piece:
        for used in node.all_input_nodes:
            if used not in copies:  # a constant
                copies[used] = its.node_copy(used)
        copies[node] = its.node_copy(node, copies.__getitem__)
    output = its.output(tuple(copies[node] for node in outputs))
    output.meta["user_visible_output_idxs"] = [place for place, node in enumerate(outputs) if node in visible]
    return GraphModule(graph, its)


def _compiled(module: GraphModule, examples: list[Any], *args: Any, **kwargs: Any) -> tuple[Any, list[Any]]:
    """A compiled piece, and the strides that Inductor gives its results."""
    from torch._inductor.compile_fx import compile_fx_inner

    with TracingContext.report_output_strides() as strides:
        run = compile_fx_inner(module, examples, *args, **kwargs)
    results = _results(module)
    return run, strides or [None] * len(results)


def _strided(value: Any, strides: Sequence[Any] | None) -> Any:
    return value if strides is None else value.as_strided(value.size(), strides)


def _report_strides(graph: GraphModule, examples: dict[Node, Any]) -> None:
    """Tell autograd how the results lie in memory, as Inductor does for a graph that is compiled as a whole."""
    context = TracingContext.try_get()
    if context is not None and context.output_strides is not None:
        results = (examples.get(result) for result in _results(graph))
        context.output_strides += [r.stride() if isinstance(r, torch.Tensor) else None for r in results]
