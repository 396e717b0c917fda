"""The native interposer: C++ that sees every operator below autograd, and runs those that need no decision.

The sources are in ``csrc``. It is built once for each PyTorch, and imported as an extension module. There is one in a
process: it holds a dispatch key. Without it the dispatch mode of Python does the same, more slowly.
"""

from torch_lms.native.module import Laning, Moment, Native, PageId, ToldRecipe

__all__ = ["Laning", "Moment", "Native", "PageId", "ToldRecipe"]
