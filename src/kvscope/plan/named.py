"""Values with the names that a study gives them."""

from typing import Any


class Named:
    """A value that equals the plain value and is shown by its name."""

    words: str


class NamedInt(int, Named):
    """A whole number with a name."""


class NamedFloat(float, Named):
    """A number with a name."""


class NamedText(str, Named):
    """A text, or an option, with a name."""


CAN_BE_NAMED: dict[type, type[Any]] = {int: NamedInt, float: NamedFloat, str: NamedText}


def name(value: Any, words: str | None) -> Any:
    """The value with a name; unchanged without a name, or if it is neither a number nor a text."""
    kind = CAN_BE_NAMED.get(type(value))
    if words is None or kind is None:
        return value
    named = kind(value)
    named.words = words
    return named


def name_of(value: Any) -> str | None:
    """The name of a value; None if it has none."""
    return value.words if isinstance(value, Named) else None
