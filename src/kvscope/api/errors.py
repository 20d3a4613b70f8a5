"""Errors that the command line shows as one sentence, by what is to blame."""

from kvscope.base.errors import BadInput, CannotWrite, KvscopeError, reason_of

__all__ = ["BadInput", "CannotWrite", "KvscopeError", "reason_of"]
