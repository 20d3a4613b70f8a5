"""`trace`: lengths and arrival times of recorded requests.

The file's suffix selects the format. `.jsonl`, as of the Mooncake traces: one object per line with
`timestamp` (milliseconds, or what `time_unit` says; optional), `input_length` and `output_length`;
other keys are ignored, but a file whose times may be seconds is refused
(`kvscope.workload.time_unit`).
`.csv`: a header with `prompt_tokens`, `output_tokens` and, optionally, `arrival_s`.
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar

from kvscope.base import limits
from kvscope.base.errors import BadInput
from kvscope.base.reading import short_repr, text_lines
from kvscope.plan import sources
from kvscope.plan.fields import MAX_LENGTH, MAX_REQUESTS, MAX_TOKENS, Label, Requests, Sha256
from kvscope.plan.parts import Conditions
from kvscope.plan.workload import Lengths, Workload
from kvscope.workload.time_unit import (
    TimeUnit,
    Unit,
    per_second,
    refuse_ambiguous,
    unless_effective,
)

CSV_COLUMNS = ("prompt_tokens", "output_tokens", "arrival_s")


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace: prompt tokens, output tokens, and arrival time or None."""

    prompt: int
    output: int
    arrival_s: float | None


class Trace(Workload):
    """Lengths and, with arrival=trace, arrival times from a recorded trace.

    The planner fills in the SHA-256 of the file's content (plan.sources).
    """

    files: ClassVar[dict[str, str]] = {"path": "sha256"}
    wanted: ClassVar[str] = (
        "a trace, a .jsonl as those of github.com/kvcache-ai/Mooncake or a .csv with "
        "prompt_tokens and output_tokens"
    )
    has_times: ClassVar[bool] = True

    num_requests: Annotated[Requests | None, Label("requests", "{} requests")] = None
    path: str
    sha256: Sha256
    time_unit: TimeUnit = None

    def check(self, experiment: Conditions) -> None:
        """Refuse, too, a unit of times where no times are read."""
        super().check(experiment)
        unless_effective(self.time_unit, self.arrival, Path(self.path).suffix)

    def lengths(self, seed: int) -> list[Lengths]:
        """The lengths of the file's first num_requests requests (all if null), in its order."""
        return [Lengths(request.prompt, request.output) for request in self.requests()]

    def requests(self) -> tuple[TraceRequest, ...]:
        """The first num_requests requests of the file (all if null), in its order.

        BadInput if the file changed since planning, is malformed, or has too few or too many.
        """
        sources.verify(self)
        rows = _read(Path(self.path), self.sha256, self.time_unit)
        count = self.num_requests or len(rows)
        if count > MAX_REQUESTS:
            raise BadInput(
                f"{self.path}: holds more than {MAX_REQUESTS:,} requests; take the first ones with "
                "workload.num_requests"
            )
        if count > len(rows):
            raise BadInput(
                f"workload.num_requests is {count}, but {self.path} holds {len(rows)} requests"
            )
        tokens = sum(row.prompt + row.output for row in rows[:count])
        if tokens > MAX_TOKENS:
            raise BadInput(
                f"{self.path}: its first {count:,} requests have {tokens:,} tokens, but at most "
                f"{MAX_TOKENS:,} can be served; take fewer with workload.num_requests"
            )
        return rows[:count]

    def times(self) -> list[float]:
        """Arrival times in seconds since the first; BadInput if a request has none."""
        path = Path(self.path)
        if path.suffix == ".jsonl" and self.time_unit is None:
            refuse_ambiguous(_json_rows(path), self.num_requests)
        times = [request.arrival_s for request in self.requests()]
        known_s = [time for time in times if time is not None]
        if len(known_s) < len(times):
            raise BadInput(
                f"workload.arrival is 'trace', but not every request of {self.path} has a time; "
                "choose all_at_once or poisson"
            )
        return [time - known_s[0] for time in known_s]


@lru_cache(maxsize=8)
def _read(path: Path, sha256: str, unit: Unit | None) -> tuple[TraceRequest, ...]:
    """Parse at most MAX_REQUESTS + 1 requests of a file; cached by the SHA-256 of its content."""
    if path.suffix == ".jsonl":
        rows = _json_lines(path, per_second(unit))
    elif path.suffix == ".csv":
        rows = _csv_lines(path)
    else:
        raise BadInput(f"workload.path is {str(path)!r} but must end in .jsonl or .csv")
    items: list[TraceRequest] = []
    try:
        for place, item in islice(rows, MAX_REQUESTS + 1):
            if items and (item.arrival_s or 0) < (items[-1].arrival_s or 0):
                raise BadInput(f"{place}: arrives before the request above it")
            items.append(item)
    except csv.Error as error:
        raise BadInput(f"{path}: cannot be read as text ({error})") from None
    if not items:
        raise BadInput(f"{path}: holds no requests")
    return tuple(items)


def _json_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file, one a line, each with its place in words."""
    for number, line in enumerate(text_lines(path, limits.LONGEST_REQUEST_BYTES), start=1):
        place = f"{path}:{number}"
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise BadInput(f"{place}: not a JSON object") from None
        if not isinstance(row, dict):
            raise BadInput(f"{place}: not a JSON object")
        yield place, row


def _json_lines(path: Path, unit: int) -> Iterator[tuple[str, TraceRequest]]:
    """The requests of a file with so many units of its times in a second."""
    for place, row in _json_rows(path):
        time = _time(row.get("timestamp"), "timestamp", place, unit)
        arrival = None if time is None else time / unit
        prompt, output = (_count(row.get(k), k, place) for k in ("input_length", "output_length"))
        yield place, TraceRequest(prompt, output, arrival)


def _csv_lines(path: Path) -> Iterator[tuple[str, TraceRequest]]:
    reader = csv.reader(text_lines(path, limits.LONGEST_REQUEST_BYTES))
    columns = {name: i for i, name in enumerate(next(reader, [])) if name in CSV_COLUMNS}
    for row in reader:
        if not row:
            continue
        place = f"{path}:{reader.line_num}"
        values = {name: row[i] for name, i in columns.items() if i < len(row)}
        prompt, output = (_count(values.get(key), key, place) for key in CSV_COLUMNS[:2])
        time_s = _time(values.get("arrival_s"), "arrival_s", place)
        yield place, TraceRequest(prompt, output, time_s)


def _count(value: Any, key: str, place: str) -> int:
    """A whole number of at least 1, from JSON or from the text of a CSV field."""
    digits = value.strip() if isinstance(value, str) else ""
    count = int(digits) if digits.isdecimal() and len(digits) < 20 else value
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_LENGTH:
        raise BadInput(
            f"{place}: {key} is {short_repr(value)} but must be a whole number of 1 to {MAX_LENGTH}"
        )
    return count


def _time(value: Any, key: str, place: str, per_second: int = 1) -> float | None:
    """A time of at least 0, in units of 1 / per_second, from JSON or text; None if absent."""
    if value is None:
        return None
    most = limits.LATEST_EPOCH_S * per_second
    try:
        time = float("nan" if isinstance(value, bool) else value)
    except (TypeError, ValueError, OverflowError):
        time = float("nan")
    if not 0 <= time <= most:
        raise BadInput(f"{place}: {key} is {short_repr(value)} but must be a number of 0 to {most}")
    return time
