"""The unit of the times in a trace's JSON lines: the format's milliseconds, unless said otherwise.

Mooncake's `timestamp` is in milliseconds, and a file does not say so. Other traces have the same
key in seconds. `refuse_ambiguous` refuses a file that may be one of them. Its signs are

- keys of a format whose times are in seconds (`SECONDS_FORMATS`);
- a time with a fraction, since Mooncake's are whole;
- different times half of which lie less than `CLOSE` apart: as milliseconds more than ten arrivals
  a second, as seconds one within a minute and a half;
- times that are seconds since 1970, of this century;
- times of more than `LONGEST_DAYS` in all, as nanoseconds read as milliseconds are.

The file says its unit by the key `arrival_pass`, which `kvscope replay` writes, and the user by
`workload.time_unit`. Equal times tell nothing: they are equal in any unit.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, pairwise
from statistics import median
from typing import Annotated, Any, Literal

from kvscope.base.errors import BadInput
from kvscope.base.reading import short_repr
from kvscope.plan.fields import Label, impossible

Unit = Literal["ms", "s"]
TimeUnit = Annotated[Unit | None, Label("unit of the trace's times", "times in {}")]

PER_SECOND: dict[str | None, int] = {"ms": 1000, "s": 1, None: 1000}
KEY, OWN_KEY = "timestamp", "arrival_pass"
SECONDS_FORMATS = {
    "chat_id": "the Qwen-Bailian traces",
    "parent_chat_id": "the Qwen-Bailian traces",
}
CLOSE = 100
DAY = 24 * 60 * 60 * 1000
LONGEST_DAYS = 366
EPOCH_S = (10**9, 2**32)
REMEDY = "say which with workload.time_unit=ms or workload.time_unit=s"


def per_second(unit: Unit | None) -> int:
    """Units of a file's times in a second."""
    return PER_SECOND[unit]


def unless_effective(unit: Unit | None, arrival: str, suffix: str = ".jsonl") -> None:
    """Refuse a unit where no time is read, or where the file's column has it in its name."""
    if unit is None:
        return
    if arrival != "trace":
        raise impossible(
            f"workload.time_unit ({unit}) has no meaning with workload.arrival={arrival}, only "
            "with trace",
            *("workload.time_unit", "workload.arrival"),
        )
    if suffix == ".csv":
        raise impossible(
            f"workload.time_unit ({unit}) must be null with a .csv, whose arrival_s is in seconds",
            *("workload.time_unit", "workload.path"),
        )


def refuse_ambiguous(
    rows: Iterable[tuple[str, Mapping[str, Any]]], most: int | None = None
) -> None:
    """BadInput if a file's times may be seconds: file, line and value, and how to say the unit.

    `rows` are its JSON objects with their places in words; the first `most` of them are looked at.
    Times that are no numbers are left to the reader.
    """
    times = [*_times(islice(rows, most))]
    different = [entry for i, entry in enumerate(times) if not i or entry[1] != times[i - 1][1]]
    if not different:
        return
    (_, first), (place, time) = different[0], different[-1]
    apart = median([b - a for (_, a), (_, b) in pairwise(different)] or [math.inf])
    if EPOCH_S[0] <= first < EPOCH_S[1] and len(different) > 1:
        may_be = "which may be milliseconds, as expected, or seconds since 1970"
    elif time - first > LONGEST_DAYS * DAY:
        days = f"{(time - first) / DAY:,.0f} days"
        may_be = f"{days} after the first if they are milliseconds, as expected"
    elif 0 < apart < CLOSE:
        half = f"half of the different times lie {apart:.3g} or less apart"
        may_be = f"and {half}, which may be milliseconds, as expected, or seconds"
    else:
        return
    raise BadInput(f"{place}: {KEY} is {short_repr(time)}, {may_be}; {REMEDY}")


def _times(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[tuple[str, float]]:
    """The times that may be in either unit; BadInput at the first sign of seconds."""
    for place, row in rows:
        time = _number(row.get(KEY))
        if OWN_KEY in row or time is None:
            continue
        named = next((key for key in SECONDS_FORMATS if key in row), None)
        if named or (isinstance(time, float) and not time.is_integer()):
            why = (
                f"beside {named}, a key of {SECONDS_FORMATS[named]}, whose times are in seconds"
                if named
                else "which is no whole number, as of a time in seconds"
            )
            raise BadInput(
                f"{place}: {KEY} is {short_repr(time)}, {why}, where milliseconds were expected; "
                f"{REMEDY}"
            )
        yield place, time


def _number(value: Any) -> int | float | None:
    """A time, which may be a text; None if the value is no time."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    is_time = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_time and math.isfinite(value) else None
