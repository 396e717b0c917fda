"""Where a graph is cut."""

import operator
from collections.abc import Container, Iterable, Iterator
from functools import cache
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import GraphModule, Node
from torch.multiprocessing.reductions import StorageWeakRef

Piece = list[Node]
"""Operations that follow each other."""


def cut(graph: GraphModule, most_bytes: int) -> list[Piece]:
    """The operations of ``graph`` in pieces, each of which touches at most ``most_bytes``, as far as that is possible.

    Cut is before operations that have a kernel of their own, for others might be fused across. A stretch from one
    such place to the next that needs too much by itself is cut between any two operations.
    """
    operations = list(_operations(graph))
    stretches = list(_stretches(operations))
    nbytes = _materialized(graph, stretches)
    large = {node for stretch in stretches if _sum(_touched(stretch), nbytes) > most_bytes for node in stretch}
    fine = list(_stretches(operations, everywhere_in=large))
    return list(_joined(fine, _materialized(graph, fine), most_bytes))


def has_unknown_sizes(graph: GraphModule) -> bool:
    """Whether a size in ``graph`` is known only when it has run so far, as that of ``nonzero``."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return any(free_unbacked_symbols(value) for node in graph.graph.nodes for value in _tensors(node))


def storages_of(node: Node) -> dict[StorageWeakRef, int]:
    """The memory of the tensors that ``node`` gives, in bytes."""
    found = {}
    for tensor in _tensors(node):
        storage = tensor.untyped_storage()
        found[StorageWeakRef(storage)] = _hint(storage.nbytes())
    return found


def _operations(graph: GraphModule) -> Iterator[Piece]:
    """Each after the views that it is the first to use, and before what takes its result apart."""
    views: dict[Node, None] = {}  # that nobody has used so far

    def views_for(nodes: Iterable[Node]) -> Iterator[Node]:
        for node in nodes:
            if node in views:
                del views[node]
                yield from views_for(node.all_input_nodes)
                yield node

    for node in graph.graph.nodes:
        if node.op in ("placeholder", "get_attr") or _takes_apart(node):
            continue
        if _is_view(node.target):
            views[node] = None
        elif node.op == "output":
            if last := list(views_for(node.all_input_nodes)):
                yield last
        else:
            before = list(views) if _writes(node.target) else node.all_input_nodes
            yield [*views_for(before), node, *filter(_takes_apart, node.users)]


def _stretches(operations: Iterable[Piece], everywhere_in: Container[Node] = ()) -> Iterator[Piece]:
    """Operations up to the next that has a kernel of its own. Those of ``everywhere_in`` are for themselves."""
    stretch: Piece = []
    for operation in operations:
        is_alone = operation[-1] in everywhere_in
        if stretch and (is_alone or any(map(_has_own_kernel, operation))):
            yield stretch
            stretch = []
        stretch = [*stretch, *operation]
    if stretch:
        yield stretch


def _joined(stretches: Iterable[Piece], nbytes: dict[StorageWeakRef, int], most_bytes: int) -> Iterator[Piece]:
    piece: Piece = []
    touched: set[StorageWeakRef] = set()
    for stretch in stretches:
        more = _touched(stretch)
        if piece and _sum(touched | more, nbytes) > most_bytes:
            yield piece
            piece, touched = [], set()
        piece = [*piece, *stretch]
        touched |= more
    if piece:
        yield piece


def _touched(piece: Iterable[Node]) -> set[StorageWeakRef]:
    """Memory that ``piece`` reads or writes."""
    touching = (node for node in piece if not _is_view(node.target))
    return {storage for node in touching for used in (node, *node.all_input_nodes) for storage in storages_of(used)}


def _sum(storages: Iterable[StorageWeakRef], nbytes: dict[StorageWeakRef, int]) -> int:
    return sum(nbytes.get(storage, 0) for storage in storages)


def _materialized(graph: GraphModule, stretches: Iterable[Piece]) -> dict[StorageWeakRef, int]:
    """Bytes of what is in memory, not only in registers while the kernel of a stretch runs."""
    stretch_of = {node: number for number, stretch in enumerate(stretches) for node in stretch}
    nbytes: dict[StorageWeakRef, int] = {}
    for node in graph.graph.nodes:
        is_needed_elsewhere = any(stretch_of.get(user) != stretch_of.get(node) for user in node.users)
        if is_needed_elsewhere or _has_own_kernel(node) or any(map(_has_own_kernel, node.users)):
            nbytes |= storages_of(node)
    return nbytes


def _tensors(node: Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else (value,)
    return [one for one in values if isinstance(one, torch.Tensor) and one.layout is torch.strided]


def _hint(size: Any) -> int:
    """A size, or what it is for the inputs that were given at first."""
    return size if isinstance(size, int) else int(size.node.hint)


def _takes_apart(node: Node) -> bool:
    return node.target is operator.getitem and isinstance(node.args[0], Node) and node.args[0].op == "call_function"


def _is_view(target: Any) -> bool:
    if not isinstance(target, OpOverload) or _writes(target):
        return False
    return any(argument.alias_info is not None for argument in target._schema.arguments)


def _writes(target: Any) -> bool:
    return isinstance(target, OpOverload) and target._schema.is_mutable


def _has_own_kernel(node: Node) -> bool:
    return node.op == "call_function" and _is_never_fused(node.target)


@cache
def _is_never_fused(target: Any) -> bool:
    """Whether Inductor calls a kernel of a library for this operator, or one of its own that begins anew."""
    from torch._inductor.lowering import fallbacks
    from torch.utils.flop_counter import flop_registry

    packet = getattr(target, "overloadpacket", None)
    return isinstance(target, HigherOrderOperator) or packet in flop_registry or target in fallbacks
