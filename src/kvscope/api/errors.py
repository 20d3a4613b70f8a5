"""Errors that the command line shows as one sentence, by what is to blame."""

from kvscope.errors import BadInput, KvscopeError

__all__ = ["BadInput", "KvscopeError"]
