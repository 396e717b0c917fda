"""The largest value that fits, by few tries: the same one, wherever the search begins."""

from collections.abc import Callable

_PARTS = 256
"""Between a power of two and the next, in how many parts they are told apart."""

_BEYOND = 1, 2
"""Powers of two above one that fits that must not fit: what a step needs may fall for a while where it is done in
another way."""


def largest_that_fits(fits: Callable[[int], bool], granule: int, start: int) -> int:
    """The largest multiple of ``granule`` that fits, to a 256th; 0 if none does.

    Only powers of two times ``granule`` are tried, then halves of what lies between the last of them that fits and the
    next. So ``start`` decides how many tries it takes, and nothing else. What fits more values from there is never told
    less, for it goes up at each try at which the other did.
    """
    power = 1 << (max(1, start // granule).bit_length() - 1)
    while power and not fits(power * granule):
        power //= 2
    while higher := next((power << n for n in _BEYOND if power and fits((power << n) * granule)), 0):
        power = higher
    low, high, least = power, 2 * power, max(1, power // _PARTS)
    while high - low > least:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * granule) else (low, middle)
    return low * granule
