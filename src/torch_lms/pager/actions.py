"""What the pager asks for. Every backend performs the same actions (see ``engine.Backend``).

The pager yields one action at a time and is sent the outcome: None, or the error that kept it from being done. So its
book says at every moment what is the case, not what was hoped for.
"""

from collections.abc import Generator
from typing import NamedTuple

from torch_lms.policy import Recipe
from torch_lms.residency import PageId, Tier


class StartEvict(NamedTuple):
    """Start to copy the page down to ``tier``."""

    page: PageId
    tier: Tier


class FinishEvict(NamedTuple):
    """From here on the lower copy counts: wait for it, or make the device wait."""

    page: PageId


class Release(NamedTuple):
    """Free the page's device bytes. Only ever after its lower copy is complete."""

    page: PageId


class StartFetch(NamedTuple):
    """Allocate the page's device bytes and start to copy them up."""

    page: PageId


class FinishFetch(NamedTuple):
    """The page is about to be used: wait for it, or make the device wait."""

    page: PageId


class Discard(NamedTuple):
    """Give up the page's lower copy in ``tier``."""

    page: PageId
    tier: Tier


class Drop(NamedTuple):
    """Free the page's device bytes although there is no other copy, if it can be recomputed by ``recipe``, whose inputs
    stay alive until then. An outcome says why it cannot.
    """

    page: PageId
    recipe: Recipe


class Recompute(NamedTuple):
    """Recompute the dropped page. Its inputs are resident."""

    page: PageId


Action = StartEvict | FinishEvict | Release | StartFetch | FinishFetch | Discard | Drop | Recompute

Actions = Generator[Action, Exception | None, None]
"""Yields actions, and is sent the outcome of each."""
