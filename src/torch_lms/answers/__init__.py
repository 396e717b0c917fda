"""Answers to ``torch-lms plan``: a forecast for a step as it is asked for, or for the largest that fits.

Lower files first: ``device_room`` (what a device can hold now), ``search`` (a largest value by few tries),
``question`` (what is asked), ``step`` (the answer for one step on one machine), ``largest_step`` (the answer for the
largest that fits).
"""

from torch_lms.answers.device_room import room_bytes
from torch_lms.answers.largest_step import largest, largest_within
from torch_lms.answers.question import CHECKPOINT, Question
from torch_lms.answers.step import Answer, Largest, Lasting, answer

__all__ = [
    "CHECKPOINT",
    "Answer",
    "Largest",
    "Lasting",
    "Question",
    "answer",
    "largest",
    "largest_within",
    "room_bytes",
]
