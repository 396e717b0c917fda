"""The largest value that fits, by few tries: the same one, wherever the search begins."""

from collections.abc import Callable

_PARTS = 256
"""The number of parts between a power of two and the next that are told apart: an answer is exact to 0.4 %."""


def largest_that_fits(fits: Callable[[int], bool], granule: int, start: int) -> int:
    """The largest multiple of ``granule`` that fits, to a 256th; 0 if none does.

    Only powers of two times ``granule`` are tried, then halves of what lies between the last of them that fits and the
    next. So ``start`` decides how many tries it takes, and nothing else. What fits more values from there is never told
    less, for it goes up at each try at which the other did.
    """
    power = 1 << (max(1, start // granule).bit_length() - 1)
    while power and not fits(power * granule):
        power //= 2
    if power == 0:
        return 0
    # What a step needs may fall for a while where it is done in another way. So the search ends only where neither of
    # the next two powers fits.
    while True:
        if fits(2 * power * granule):
            power *= 2
        elif fits(4 * power * granule):
            power *= 4
        else:
            break
    low = power
    high = 2 * power
    close_enough = max(1, power // _PARTS)
    while high - low > close_enough:
        middle = (low + high) // 2
        if fits(middle * granule):
            low = middle
        else:
            high = middle
    return low * granule
