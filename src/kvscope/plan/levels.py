"""Names that a study gives to values of its keys, and values that know their names."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from kvscope.errors import BadInput
from kvscope.plan.complaints import format_value

Levels = Mapping[str, Mapping[Any, str]]
"""The name of each named value, by dotted key."""


class Named:
    """A value that equals the plain one and is shown by its name."""

    words: str


class NamedInt(int, Named):
    """A whole number with a name."""


class NamedFloat(float, Named):
    """A number with a name."""


class NamedText(str, Named):
    """A text, or an option, with a name."""


_KINDS: dict[type, type[Any]] = {int: NamedInt, float: NamedFloat, str: NamedText}


def name(value: Any, words: str | None) -> Any:
    """The value with a name; as it is without one, or if it is none of a number and a text."""
    kind = _KINDS.get(type(value))
    if words is None or kind is None:
        return value
    named = kind(value)
    named.words = words
    return named


def name_of(value: Any) -> str | None:
    """The name of a value; None if it has none."""
    return value.words if isinstance(value, Named) else None


def check(levels: Levels, values: Mapping[str, list[Any]], study: str) -> None:
    """BadInput if a level is of a key that does not vary, or of a value that no grid gives.

    `values` are those that the grids of the study give each key.
    """
    for key, names in levels.items():
        given = values.get(key, [])
        if len(given) < 2:
            raise BadInput(
                f"levels has {key} (study {study}) but must name values of a key that varies in "
                f"its grids: {', '.join(k for k, own in values.items() if len(own) > 1) or 'none'}"
            )
        can_be = [one for one in given if type(one) in _KINDS]
        if not can_be:
            raise BadInput(
                f"levels has {key} (study {study}), whose values are "
                f"{', '.join(map(format_value, given))}, but must name numbers or texts; remove it"
            )
        for words, count in Counter(names.values()).items():
            if count > 1:
                raise BadInput(
                    f"levels.{key} has {words!r} (study {study}) for {count} values but must have "
                    "a name of its own for each"
                )
        for value in names:
            if value not in can_be:
                raise BadInput(
                    f"levels.{key} has {format_value(value)} (study {study}) but must have values "
                    f"that a grid gives the key: {', '.join(map(format_value, can_be))}"
                )
