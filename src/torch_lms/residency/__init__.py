"""Where the bytes of every page are, and what that costs. No torch, no I/O, no clock."""

from torch_lms.residency.book import Book, Ledger
from torch_lms.residency.page import Page, PageId, Tier
from torch_lms.residency.state import TRANSITIONS, UNDER_WAY, State, Trigger, transition_table

__all__ = [
    "TRANSITIONS",
    "UNDER_WAY",
    "Book",
    "Ledger",
    "Page",
    "PageId",
    "State",
    "Tier",
    "Trigger",
    "transition_table",
]
