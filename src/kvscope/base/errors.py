"""The errors that a user sees: one sentence each, with an exit code."""

import errno
import os
from pathlib import Path

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2


class KvscopeError(Exception):
    """Something failed while working; the message is one sentence for the user."""

    exit_code = EXIT_FAILED


class BadInput(KvscopeError):
    """The user's input cannot be used; the message names the value, what is expected, and where."""

    exit_code = EXIT_BAD_INPUT


class CannotWrite(KvscopeError):
    """A file or directory cannot be written; files that were written before are kept."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"{path}: cannot be written ({reason_of(error)}){_remedy(error)}")


def reason_of(error: OSError) -> str:
    """The operating system's message for an error, such as 'No space left on device'."""
    if error.errno is None:
        return " ".join(str(error).split())  # raised by a library, without an error number
    return os.strerror(error.errno)


def _remedy(error: OSError) -> str:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return "; free some space and start again, finished work is kept" if full else ""
