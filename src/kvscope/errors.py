"""The errors a user may see, each one sentence, each with its exit code."""

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2


class KvscopeError(Exception):
    """Something failed while working; the message is one sentence for the user."""

    exit_code = EXIT_FAILED


class BadInput(KvscopeError):
    """The user's input cannot be used; the message names value, expectation and place."""

    exit_code = EXIT_BAD_INPUT
