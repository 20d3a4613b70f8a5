"""Tables of documents, which `python -m kvscope.docs` generates."""

from kvscope.docs import markdown

__all__ = ["markdown"]
