"""The unit of the times in a trace's JSON lines: the format's milliseconds, unless said otherwise.

Mooncake's `timestamp` is in milliseconds, and a file does not say so. Other traces have the same
key in seconds. `refuse_ambiguous` refuses a file that may be one of them. Its signs are

- keys of a format whose times are in seconds (`SECONDS_FORMATS`);
- a time with a fraction, since Mooncake's are whole;
- different times that lie less than `CLOSE` apart on average: as milliseconds more than ten
  arrivals a second for as long as the file goes on, as seconds one within a minute and a half.

The file says its unit by the key `arrival_pass`, which `kvscope replay` writes, and the user by
`workload.time_unit`. Equal times tell nothing: they are equal in any unit.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Annotated, Any, Literal

from kvscope.errors import BadInput
from kvscope.plan.fields import Label, impossible
from kvscope.reading import short_repr

Unit = Literal["ms", "s"]
TimeUnit = Annotated[Unit | None, Label("unit of the trace's times", "times in {}")]

PER_SECOND: dict[str | None, int] = {"ms": 1000, "s": 1, None: 1000}
KEY, OWN_KEY = "timestamp", "arrival_pass"
SECONDS_FORMATS = {
    "chat_id": "the Qwen-Bailian traces",
    "parent_chat_id": "the Qwen-Bailian traces",
}
CLOSE = 100
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
    first = last = (0.0, "")
    different = 0
    for place, time in _times(islice(rows, most)):
        if not different or time != last[0]:
            first = first if different else (time, place)
            last, different = (time, place), different + 1
    if different > 1 and 0 < (apart := (last[0] - first[0]) / (different - 1)) < CLOSE:
        raise BadInput(
            f"{last[1]}: {KEY} is {short_repr(last[0])}, and different times lie {apart:.3g} apart "
            f"on average, which may be milliseconds, as expected, or seconds; {REMEDY}"
        )


def _times(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[tuple[str, float]]:
    """The times that may be in either unit; BadInput at the first sign of seconds."""
    for place, row in rows:
        time = row.get(KEY)
        if OWN_KEY in row or isinstance(time, bool) or not isinstance(time, int | float):
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
