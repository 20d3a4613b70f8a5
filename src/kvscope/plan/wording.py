"""Parts of sentences about what a user wrote."""

import difflib
from collections.abc import Iterable
from typing import Any


def suggestion(word: str, known: Iterable[str]) -> str:
    """' (did you mean …?)' if a known word is similar to `word`, else ''."""
    found = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""


def format_value(value: Any) -> str:
    """A value as YAML would write it, shortened to 60 characters."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
