"""What sets runs apart, and what they share: their settings as flat keys."""

from collections.abc import Iterator, Sequence
from typing import Any

Settings = dict[str, Any]


def flat(settings: Settings, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings as dotted keys and values, in order."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def varied_settings(settings: Sequence[Settings]) -> list[Settings]:
    """Of each run, the settings in which the runs differ; None where a run has no such key.

    Where a section's option differs (`batching.name`) the section stands for it (`batching:
    chunked`), and a key that comes with the option counts only if it differs beside it.
    """
    rows = [dict(flat(one)) for one in settings]
    keys = dict.fromkeys(key for row in rows for key in row)
    differ = [key for key in keys if any(row.get(key) != rows[0].get(key) for row in rows)]
    options = {key.removesuffix(".name") for key in differ if key.endswith(".name")}
    kept = [key for key in differ if not _told_by_option(key, rows, options)]
    return [{key.removesuffix(".name"): row.get(key) for key in kept} for row in rows]


def _told_by_option(key: str, rows: Sequence[Settings], options: set[str]) -> bool:
    """Whether a key's value follows from the option its section takes."""
    section = key.rpartition(".")[0]
    if key.endswith(".name") or section not in options:
        return False
    by_option: dict[Any, set[Any]] = {}
    for row in rows:
        by_option.setdefault(row.get(f"{section}.name"), set()).add(str(row.get(key)))
    return all(len(values) == 1 for values in by_option.values())


def shared_settings(settings: Sequence[Settings]) -> Settings:
    """The flat settings that all runs have alike."""
    rows = [dict(flat(one)) for one in settings if one]
    if not rows:
        return {}
    return {
        key: value
        for key, value in rows[0].items()
        if all(key in row and row[key] == value for row in rows)
    }


def differing_keys(one: Settings, other: Settings) -> list[str]:
    """The keys in which two experiments differ.

    A key that only one of them has is no difference of its own where the option it comes with
    differs, too: `batching.chunk_tokens` of chunked beside mixed batching.
    """
    keys = list(dict.fromkeys((*one, *other)))
    differ = [key for key in keys if one.get(key) != other.get(key)]
    return [
        key
        for key in differ
        if key.partition(".")[0] == key
        or key.partition(".")[0] not in differ
        or (one.get(key) is not None and other.get(key) is not None)
    ]
