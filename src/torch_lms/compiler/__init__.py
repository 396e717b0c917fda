"""``torch.compile(model, backend="lms")``: compiled in pieces, so that pages can come and leave between them."""

from torch_lms.compiler.backend import lms

__all__ = ["lms"]
