"""Who holds tensors beside the program's variables, as a notebook's outputs do: its extension tells the statistics."""

from collections.abc import Callable

_tellers: list[Callable[[], dict[str, int]]] = []


def add(teller: Callable[[], dict[str, int]]) -> None:
    """Ask ``teller``, too: it tells bytes by the name of who holds them."""
    _tellers.append(teller)


def remove(teller: Callable[[], dict[str, int]]) -> None:
    """Ask it no more."""
    _tellers.remove(teller)


def held() -> dict[str, int]:
    """Bytes of tensors by the name of the output that holds them."""
    return {name: nbytes for teller in _tellers for name, nbytes in teller().items()}
