"""Which of the two ways the tests run by: $TORCH_LMS_INTERPOSER chooses."""

from torch_lms.native import load

IS_NATIVE = load.find().native is not None

AT_HAND = ("python", "native") if IS_NATIVE else ("python",)
"""Those that a test may choose by itself."""
