"""Tables of documents, which `python -m kvscope.cli.docs` generates."""

from kvscope.cli.docs import markdown

__all__ = ["markdown"]
