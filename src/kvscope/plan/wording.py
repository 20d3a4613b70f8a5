"""Parts of sentences about a user's input."""

import difflib
from collections.abc import Iterable
from typing import Any

from kvscope.base import extensions


def suggestion(word: str, known: Iterable[str]) -> str:
    """' (did you mean …?)' if a known word is similar to `word`, else ''."""
    matches = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def but_one_of(kind: str, name: object, known: Iterable[str]) -> str:
    """The rest of a sentence on an unknown name: the known names, or the package that has it.

    ' (did you mean …?) but must be one of …', ' but the package …; install it, or take one of …'.
    """
    known = list(known)
    if clause := extensions.absent(kind, name):
        return f" but {clause}, or take one of {', '.join(known)}"
    return f"{suggestion(str(name), known)} but must be one of {', '.join(known)}"


def format_value(value: Any) -> str:
    """A value as YAML would write it, shortened to 60 characters."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
