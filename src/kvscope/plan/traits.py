"""Settings in words, those that set experiments apart, and those that they share.

A study varies flat keys: `overflow`, `overflow.host_memory`, `overflow.copies`. Those that come
with an option only are part of it: `overflow` has the value 'swap (pinned, per block)'.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from kvscope.plan.fields import Label
from kvscope.plan.named import name, name_of
from kvscope.plan.vocabulary import is_option, label

Settings = dict[str, Any]

MINOR = ("tracing", "profiler")  # in a name only where nothing else differs
BLOCKS, BLOCK_SIZE, TOKENS = "cache.blocks", "cache.block_size", "cache.tokens"
CACHE = (BLOCKS, TOKENS, "cache.gib", "cache.oversubscription")
"""Keys that all say how large the cache is."""

LINK = "device.constants.pinned_in_bytes_per_s"
ONE = re.compile(r"^(1 [a-z ]+)s$")  # one of what is counted, in the plural
# TOKENS is no key of an experiment: it is the size of caches whose blocks differ in size.
LABELS = {
    TOKENS: Label("KV cache (tokens)", "KV cache {} tokens"),
    LINK: Label("link (B/s)", "{} GB/s"),
}

# kvscope's own values in words; other packages' values stay as they are.
VALUES = {
    "per_block": "per block",
    "by_layer": "by layer",
    "by_block": "by block",
    "all_at_once": "all at once",
    "passes": "before the recorded passes",
}


def key_title(key: str) -> str:
    """A configuration key as a column or axis is headed."""
    declared = LABELS.get(key) or label(key)
    return declared.title if declared else key


def value_text(value: Any) -> str:
    """A configuration value as it is written in a configuration; a dash for None."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def value_words(value: Any) -> str:
    """A configuration value in words: 'prefill first', or the name that the study gives it."""
    if (named := name_of(value)) is not None:
        return named
    if not isinstance(value, str):
        return value_text(value)
    if is_option(value):
        return value.replace("_", " ")
    return VALUES.get(value, value)


def setting_words(key: str, value: Any) -> str:
    """A key with its value: 'block size 32', 'KV cache 64 blocks', '1 request', 'pinned'."""
    if (named := name_of(value)) is not None:
        return named
    value = value / 1e9 if key == LINK and value is not None else value
    words, label_ = value_words(value), LABELS.get(key) or label(key)
    text = label_.phrase.format(words) if label_ and label_.phrase else f"{key_title(key)} {words}"
    return ONE.sub(r"\1", text)


def is_of_key(key: str, asked: str) -> bool:
    """Whether a key is the key that is asked about, belongs to it, or is another cache size."""
    return key == asked or key.startswith(f"{asked}.") or (key in CACHE and asked in CACHE)


@dataclass(frozen=True)
class ChosenOption:
    """An option of a group, with those of its own settings that the study varies."""

    name: str
    settings: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        words = ", ".join(setting_words(key, value) for key, value in self.settings)
        return f"{value_words(self.name)}{f' ({words})' if words else ''}"

    @property
    def numbers(self) -> list[float]:
        """Its own numbers, by which variants of an option are ordered."""
        return [float(value) for _, value in self.settings if is_number(value)]

    def without(self, key: str) -> "ChosenOption":
        """The option without one of its settings."""
        return ChosenOption(self.name, tuple(pair for pair in self.settings if pair[0] != key))


def single(value: Any) -> Any:
    """A value that can be compared and counted: a list or a group of keys as text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {single(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(str(single(item)) for item in value)
    return value


def flat(settings: Settings, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings as dotted keys and single values, in order."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, single(value)


def varied_settings(settings: Sequence[Settings]) -> list[Settings]:
    """Settings in which the runs differ, for each run; None where a run has no such key.

    Where a section's option differs (`batching.name`) the section stands for it (`batching:
    chunked`), and a key that comes with the option counts only if it differs beside it. A run
    without settings, as a recording, differs in none.
    """
    rows = [dict(flat(run)) for run in settings]
    recorded = [row for row in rows if row]
    keys = dict.fromkeys(key for row in recorded for key in row)
    differ = [key for key in keys if any(row.get(key) != recorded[0].get(key) for row in recorded)]
    options = {key.removesuffix(".name") for key in differ if key.endswith(".name")}
    kept = [key for key in differ if not _follows(key, recorded, options)]
    return [{key.removesuffix(".name"): row.get(key) for key in kept} for row in rows]


def _follows(key: str, rows: Sequence[Settings], options: set[str]) -> bool:
    """Whether a key's value follows from the option its section takes."""
    if key.endswith(".name"):
        return False
    return any(
        _settles(f"{section}.name", key, rows)
        for section in options
        if key.startswith(f"{section}.")
    )


def shared_settings(settings: Sequence[Settings]) -> Settings:
    """The flat settings that all runs share."""
    rows = [dict(flat(run)) for run in settings if run]
    return {
        key: value
        for key, value in (rows[0] if rows else {}).items()
        if all(key in row and row[key] == value for row in rows)
    }


def in_tokens(rows: Sequence[Settings]) -> list[Settings]:
    """The rows with the cache's size in tokens where the size of its blocks varies, too.

    A number of blocks is no size of its own then: 64 of 32 tokens are as much as 128 of 16.
    """
    if not any(row.get(BLOCKS) and row.get(BLOCK_SIZE) for row in rows):
        return [dict(row) for row in rows]
    return [
        {
            (TOKENS if key == BLOCKS else key): (
                name(value * row[BLOCK_SIZE], name_of(value))
                if key == BLOCKS and value is not None
                else value
            )
            for key, value in row.items()
        }
        for row in rows
    ]


def traits(rows: Sequence[Settings]) -> list[Settings]:
    """The rows with each option and the settings that only some options have made one value."""
    companions = _companions(rows)
    return [_merged(row, companions) for row in rows]


def _companions(rows: Sequence[Settings]) -> dict[str, str]:
    """Keys that come with an option, by key their group: some option has no such key."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    return {
        key: group
        for key in keys
        if (group := key.partition(".")[0]) != key
        and group in keys
        and any(row.get(key) is None for row in rows)
    }


def _merged(row: Settings, own: Mapping[str, str]) -> Settings:
    merged: Settings = {key: value for key, value in row.items() if key not in own}
    for group in dict.fromkeys(own.values()):
        if merged.get(group) is not None:
            pairs = ((key, row.get(key)) for key, its in own.items() if its == group)
            merged[group] = ChosenOption(
                merged[group], tuple(pair for pair in pairs if pair[1] is not None)
            )
    return merged


def following_limits(rows: Sequence[Settings]) -> set[str]:
    """Limits of the engine that another key settles: what follows is not repeated with it."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    return {
        limit
        for limit in keys
        if limit.startswith("engine.max_")
        and any(_settles(key, limit, rows) for key in keys if not key.startswith("engine."))
    }


def _settles(key: str, other: str, rows: Sequence[Settings]) -> bool:
    """Whether a value of `key` always comes with the same value of `other`."""
    pairs = {(row.get(key), row.get(other)) for row in rows}
    return len(pairs) == len({value for value, _ in pairs})


def value_of(traits: Settings, key: str) -> Any:
    """A key's value, also of a key that is part of an option; None where there is no such key."""
    option = traits.get(key.partition(".")[0])
    if isinstance(option, ChosenOption) and key not in traits:
        return dict(option.settings).get(key)
    return traits.get(key)


def without(traits: Settings, key: str) -> Settings:
    """The traits without a key, which may be part of an option."""
    group = key.partition(".")[0]
    if key in traits:
        return {k: v for k, v in traits.items() if k != key}
    option = traits.get(group)
    return traits | {group: option.without(key)} if isinstance(option, ChosenOption) else traits


@dataclass(frozen=True)
class Compared:
    """Labels and traits of experiments, by id, and the pairs of them that are compared.

    Pairs are ids, base and other, by the key that the two differ in.
    """

    labels: dict[str, str] = field(default_factory=dict)
    traits: dict[str, Settings] = field(default_factory=dict)
    pairs: dict[str, list[tuple[str, str]]] = field(default_factory=dict)


def tell_apart(
    ids: Sequence[str], varied: Sequence[Settings], otherwise: Sequence[str]
) -> Compared:
    """Experiments by ids and varied settings: traits, and their names as labels.

    The other label where the name is empty, or several have the same.
    """
    rows = traits(in_tokens(varied))
    names_ = names(rows)
    count = Counter(names_)
    labels = [
        words if words and count[words] == 1 else other
        for words, other in zip(names_, otherwise, strict=True)
    ]
    return Compared(dict(zip(ids, labels, strict=True)), dict(zip(ids, rows, strict=True)))


def names(rows: Sequence[Settings]) -> list[str]:
    """A name for each row of traits: what varies, but for numbers that the rest settles.

    So for how it is traced; limits of the engine go first.
    """
    keys = list(dict.fromkeys(key for row in rows for key in row))
    chosen = [key for key in keys if any(row.get(key) != rows[0].get(key) for row in rows)]
    for key in sorted(reversed(chosen), key=lambda key: not key.startswith("engine.")):
        fewer = [other for other in chosen if other != key]
        minor = key in MINOR or all(is_number(row.get(key)) for row in rows)
        if minor and _count(rows, fewer) == _count(rows, chosen):
            chosen = fewer
    return [in_words({key: row.get(key) for key in chosen}) for row in rows]


def _count(rows: Sequence[Settings], keys: Sequence[str]) -> int:
    """How many of the rows these keys tell apart."""
    return len({repr([row.get(key) for key in keys]) for row in rows})


def in_words(traits: Settings) -> str:
    """'swap (pinned, per block), block size 32'."""
    return ", ".join(
        setting_words(key, value) for key, value in traits.items() if value is not None
    )


def is_number(value: Any) -> bool:
    """Whether a setting's value is a number; a truth value is not."""
    return isinstance(value, Real) and not isinstance(value, bool)
