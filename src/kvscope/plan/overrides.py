"""Parses the overrides of the command line, in Hydra's grammar: key=value, key=a,b, …"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, QuotedString
from hydra.errors import HydraException

from kvscope.base.errors import BadInput
from kvscope.plan import layers
from kvscope.plan.fields import as_number
from kvscope.plan.wording import format_value

MAX_VALUES = 10_000
MAX_CHARACTERS = 100_000  # of an override: ten for each value
FORMS = "write key=value, key=a,b,c, key=choice(a,b) or key=range(start,stop,step)"


def parse(texts: list[str], config_dir: Path) -> dict[str, list[Any]]:
    """The values of each key, keys in the order of the overrides.

    A glob, as in `model=glob(tiny-*)`, selects options of a group. BadInput quotes an override that
    is not in the grammar, has no values or too many, or adds or deletes keys.
    """
    parser = OverridesParser.create()
    axes: dict[str, list[Any]] = {}
    for text in texts:
        override = _parse_one(parser, text)
        key = override.key_or_group
        if key in axes:
            raise BadInput(f"{key} is given twice on the command line; {FORMS}")
        try:
            values = islice(_values(override, text, config_dir), MAX_VALUES + 1)
            axes[key] = [as_number(key, value) for value in values]
        except (HydraException, ArithmeticError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise BadInput(
                f"{format_value(text)} on the command line has no values: {reason}"
            ) from None
        if not axes[key]:
            raise BadInput(f"{format_value(text)} on the command line stands for no value at all")
        if len(axes[key]) > MAX_VALUES:
            many = f"over {MAX_VALUES:,} values"
            raise BadInput(f"{format_value(text)} on the command line stands for {many}")
    return axes


def _parse_one(parser: OverridesParser, text: str) -> Override:
    unreadable = BadInput(f"{format_value(text)} on the command line cannot be read; {FORMS}")
    if len(text) > MAX_CHARACTERS:
        raise unreadable
    try:
        text.encode()
        override = parser.parse_override(text)
    except (HydraException, ValueError, RecursionError):
        raise unreadable from None
    if not override.key_or_group:
        raise unreadable
    if override.is_add() or override.is_force_add() or override.is_delete() or override.package:
        raise BadInput(
            f"{format_value(text)} on the command line adds, deletes or moves a key, but the keys "
            f"of an experiment are fixed; {FORMS}"
        )
    return override


def _values(override: Override, text: str, config_dir: Path) -> Iterator[Any]:
    value = override._value
    if not override.is_sweep_override():
        return iter([override.value()])
    if override.is_interval_sweep() or getattr(value, "shuffle", False):
        raise BadInput(
            f"{format_value(text)} on the command line is no fixed list of values; {FORMS}"
        )
    if isinstance(value, Glob):
        return iter(value.filter(list(layers.options(config_dir, override.key_or_group))))
    return (v.text if isinstance(v, QuotedString) else v for v in override.sweep_iterator())
