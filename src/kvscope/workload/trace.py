"""Trace: lengths, and arrival times, of requests that were recorded somewhere.

Two formats, told apart by the file's suffix. `.jsonl`, as the Mooncake traces: one object a line
with `timestamp` (milliseconds, optional), `input_length` and `output_length`; other keys are
ignored. `.csv`: a header with `prompt_tokens`, `output_tokens` and, optionally, `arrival_s`.
"""

import csv
import json
from collections.abc import Iterator
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any

from kvscope.errors import BadInput
from kvscope.plan.experiment import Trace
from kvscope.workload.lengths import Lengths
from kvscope.workload.source import Stamp, stamp

EXPECTED = "a trace (.jsonl or .csv)"
MILLISECONDS = 1000


def lengths(workload: Trace) -> list[Lengths]:
    """The first num_requests requests of the file (all if null), in its order."""
    path = Path(workload.path)
    found = _read(path, stamp(workload.path, EXPECTED))
    wanted = workload.num_requests or len(found)
    if wanted > len(found):
        raise BadInput(f"workload.num_requests is {wanted}, but {path} holds {len(found)} requests")
    return list(found[:wanted])


def arrivals(workload: Trace, requests: list[Lengths]) -> list[float]:
    """The file's times, in seconds since the first request; BadInput if it has none."""
    times = [r.arrival_s for r in requests if r.arrival_s is not None]
    if len(times) < len(requests):
        raise BadInput(
            f"workload.arrival is 'trace', but not every request of {workload.path} has a time; "
            "choose all_at_once or poisson"
        )
    return [time - times[0] for time in times]


@lru_cache(maxsize=8)
def _read(path: Path, stamp: Stamp) -> tuple[Lengths, ...]:
    """Parse a file once for as long as it does not change."""
    rows = {".jsonl": _json_lines, ".csv": _csv_lines}.get(path.suffix)
    if rows is None:
        raise BadInput(f"workload.path is {str(path)!r} but must end in .jsonl or .csv")
    found: list[Lengths] = []
    try:
        for place, item in rows(path):
            if found and (item.arrival_s or 0) < (found[-1].arrival_s or 0):
                raise BadInput(f"{place}: arrives before the request above it")
            found.append(item)
    except (UnicodeDecodeError, OSError, csv.Error) as error:
        raise BadInput(f"{path}: cannot be read as text ({error})") from None
    if not found:
        raise BadInput(f"{path}: holds no requests")
    return tuple(found)


def _json_lines(path: Path) -> Iterator[tuple[str, Lengths]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            place = f"{path}:{number}"
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise BadInput(f"{place}: not a JSON object ({error.msg})") from None
            if not isinstance(row, dict):
                raise BadInput(f"{place}: not a JSON object")
            milliseconds = _time(row, "timestamp", place)
            arrival = None if milliseconds is None else milliseconds / MILLISECONDS
            prompt, output = (_count(row, key, place) for key in ("input_length", "output_length"))
            yield place, Lengths(prompt, output, arrival)


def _csv_lines(path: Path) -> Iterator[tuple[str, Lengths]]:
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        for row in reader:
            place = f"{path}:{reader.line_num}"
            prompt, output = (_count(row, key, place) for key in ("prompt_tokens", "output_tokens"))
            yield place, Lengths(prompt, output, _time(row, "arrival_s", place))


def _count(row: dict[str, Any], key: str, place: str) -> int:
    """A whole number of at least 1, from JSON or from the text of a CSV field."""
    value = row.get(key)
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BadInput(f"{place}: {key} is {value!r} but must be a whole number of at least 1")
    return value


def _time(row: dict[str, Any], key: str, place: str) -> float | None:
    value = row.get(key)
    if value is None:
        return None
    try:
        time = float("nan" if isinstance(value, bool) else value)
    except (TypeError, ValueError):
        time = float("nan")
    if not isfinite(time) or time < 0:
        raise BadInput(f"{place}: {key} is {value!r} but must be a number of at least 0")
    return time
