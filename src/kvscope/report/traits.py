"""What sets experiments apart, as people compare them: an option with the settings it brings.

A study varies flat keys: `overflow`, `overflow.host_memory`, `overflow.copies`. Those below an
option say nothing by themselves where other options do not have them, so they become part of it:
one trait `overflow` of the value 'swap (pinned, per block)'.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvscope.report.words import setting_words, value_words

Settings = dict[str, Any]

BLOCKS, BLOCK_SIZE, TOKENS = "cache.blocks", "cache.block_size", "cache.tokens"


@dataclass(frozen=True)
class Option:
    """An option of a group, with those of its own settings that the study varies."""

    name: str
    settings: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        own = ", ".join(setting_words(key, value) for key, value in self.settings)
        return f"{value_words(self.name)}{f' ({own})' if own else ''}"

    def without(self, key: str) -> "Option":
        """The option as it is but for one of its settings."""
        return Option(self.name, tuple(own for own in self.settings if own[0] != key))


def in_tokens(rows: Sequence[Settings]) -> list[Settings]:
    """The rows with the cache's size in tokens where the size of its blocks varies, too.

    A number of blocks is no size of its own then: 64 of 32 tokens are as much as 128 of 16.
    """
    if not any(row.get(BLOCKS) and row.get(BLOCK_SIZE) for row in rows):
        return [dict(row) for row in rows]
    return [
        {
            (TOKENS if key == BLOCKS else key): (
                value * row[BLOCK_SIZE] if key == BLOCKS and value is not None else value
            )
            for key, value in row.items()
        }
        for row in rows
    ]


def traits(rows: Sequence[Settings]) -> list[Settings]:
    """The rows with each option and the settings that only some options have made one value."""
    own = companions(rows)
    return [_merged(row, own) for row in rows]


def companions(rows: Sequence[Settings]) -> dict[str, str]:
    """Keys that come with an option, by key their group: some option has no such key."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    return {
        key: group
        for key in keys
        if (group := key.partition(".")[0]) != key
        and group in keys
        and any(row.get(key) is None for row in rows)
    }


def following_limits(rows: Sequence[Settings]) -> set[str]:
    """Limits of the engine that another key settles: what follows need not be told with it."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    return {
        limit
        for limit in keys
        if limit.startswith("engine.max_")
        and any(_settles(key, limit, rows) for key in keys if not key.startswith("engine."))
    }


def _settles(key: str, other: str, rows: Sequence[Settings]) -> bool:
    pairs = {(row.get(key), row.get(other)) for row in rows}
    return len(pairs) == len({value for value, _ in pairs})


def _merged(row: Settings, own: Mapping[str, str]) -> Settings:
    merged: Settings = {key: value for key, value in row.items() if key not in own}
    for group in dict.fromkeys(own.values()):
        if merged.get(group) is not None:
            there = ((key, row.get(key)) for key, its in own.items() if its == group)
            settings = tuple((key, value) for key, value in there if value is not None)
            merged[group] = Option(merged[group], settings)
    return merged


def value_of(traits: Settings, key: str) -> Any:
    """A key's value, also of a key that is part of an option; None where there is no such key."""
    option = traits.get(key.partition(".")[0])
    if isinstance(option, Option) and key not in traits:
        return dict(option.settings).get(key)
    return traits.get(key)


def without(traits: Settings, key: str) -> Settings:
    """The traits but for one key, also one that is part of an option."""
    group = key.partition(".")[0]
    if key in traits:
        return {k: v for k, v in traits.items() if k != key}
    option = traits.get(group)
    return traits | {group: option.without(key)} if isinstance(option, Option) else traits


def in_words(traits: Settings) -> str:
    """'swap (pinned, per block), block size 32'."""
    return ", ".join(
        setting_words(key, value) for key, value in traits.items() if value is not None
    )
