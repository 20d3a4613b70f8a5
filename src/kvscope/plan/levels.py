"""Names that a study gives to values of its keys (`levels`)."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from kvscope.base.errors import BadInput
from kvscope.plan.named import CAN_BE_NAMED, name
from kvscope.plan.traits import Settings, single
from kvscope.plan.wording import format_value

Levels = Mapping[str, Mapping[Any, str]]
"""The name of each named value, by dotted key."""


def named(varied: Mapping[str, Any], levels: Levels) -> Settings:
    """Single values of an experiment, those that have names with these."""
    plain = {key: single(value) for key, value in varied.items()}
    return {key: name(value, levels.get(key, {}).get(value)) for key, value in plain.items()}


def check(levels: Levels, values: Mapping[str, list[Any]], study: str) -> None:
    """BadInput if a level is of a key that does not vary, or of a value that no grid gives.

    `values` are those that the grids of the study give each key.
    """
    for key, names in levels.items():
        options = values.get(key, [])
        if len(options) < 2:
            varied = ", ".join(k for k, choices in values.items() if len(choices) > 1)
            raise BadInput(
                f"levels has {key} (study {study}) but must name values of a key that varies in "
                f"its grids: {varied or 'none'}"
            )
        can_be = [option for option in options if type(option) in CAN_BE_NAMED]
        if not can_be:
            words = ", ".join(map(format_value, options))
            raise BadInput(
                f"levels has {key} (study {study}), whose values are "
                f"{words}, but must name numbers or texts; remove it"
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
