"""A simulator's or engine's steps, as `kvscope score` takes them: CSV or JSON, a row a step."""

import csv
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvscope.api.errors import BadInput
from kvscope.api.files import reading

MOST_BYTES = 256 * 2**20
REQUIRED = ("step", "requests", "tokens")
OPTIONAL = (
    *("preempted", "victims", "recomputed_tokens", "hit_tokens", "loaded_tokens"),
    *("kv_blocks_used", "duration_s"),
)
COLUMNS = (*REQUIRED, *OPTIONAL)
SEPARATOR = ";"  # between the victims of a step


@dataclass(frozen=True)
class TracedStep:
    """One step; None for what the trace does not have."""

    step: int
    requests: int
    tokens: int
    preempted: int | None = None
    recomputed_tokens: int | None = None
    kv_blocks_used: int | None = None
    duration_s: float | None = None
    victims: tuple[str, ...] | None = None
    hit_tokens: int | None = None
    loaded_tokens: int | None = None


def read_trace(path: Path) -> list[TracedStep]:
    """Read a trace: .csv with a header, or .json with a list of objects, or with them in `steps`.

    BadInput names the file, the first row with a value that cannot be used, counted from 1 below
    the header, and its column. Steps are numbered from 0.
    """
    text = reading.read_bytes(path, MOST_BYTES).decode("utf-8", errors="replace")
    is_json = path.suffix == ".json"
    rows = _json_rows(path, text) if is_json else list(csv.DictReader(text.splitlines()))
    if not rows:
        raise BadInput(f"{path}: has no steps")
    missing = [name for name in REQUIRED if name not in rows[0]]
    if missing:
        raise BadInput(f"{path}: lacks {', '.join(missing)}; a step has {', '.join(REQUIRED)}")
    steps = [_step(path, number, row) for number, row in enumerate(rows)]
    for number, step in enumerate(steps):
        if step.step != number:
            raise BadInput(f"{path}: row {number + 1} is step {step.step}, expected {number}")
    for name in OPTIONAL:
        _require_whole_column(path, steps, name)
    return steps


def _require_whole_column(path: Path, steps: list[TracedStep], name: str) -> None:
    """BadInput for a column that some steps have and others lack: a gap is no step's value."""
    lacking = [step.step for step in steps if getattr(step, name) is None]
    if 0 < len(lacking) < len(steps):
        raise BadInput(f"{path}: row {lacking[0] + 1} has no {name}, which other rows have")


def _json_rows(path: Path, text: str) -> list[dict[str, Any]]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise BadInput(f"{path}: is not JSON ({error})") from None
    rows = document.get("steps") if isinstance(document, dict) else document
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadInput(f"{path}: must be a list of steps, or have one as 'steps'")
    return rows


def _step(path: Path, number: int, row: dict[str, Any]) -> TracedStep:
    def whole(name: str) -> int | None:
        value: int | None = _number(path, number, name, row.get(name), int)
        return value

    def due(name: str) -> int:
        value = whole(name)
        if value is None:
            raise BadInput(f"{path}: row {number + 1} has no {name}")
        return value

    victims = row.get("victims")
    if isinstance(victims, str):
        victims = [name for name in victims.split(SEPARATOR) if name]
    return TracedStep(
        due("step"),
        due("requests"),
        due("tokens"),
        whole("preempted"),
        whole("recomputed_tokens"),
        whole("kv_blocks_used"),
        _number(path, number, "duration_s", row.get("duration_s"), float),
        None if victims is None else tuple(map(str, victims)),
        whole("hit_tokens"),
        whole("loaded_tokens"),
    )


def _number(path: Path, row: int, name: str, value: Any, kind: type) -> Any:
    """A value of a row; None if it is empty.

    Counts may be written as floats, such as 512.0: a table has a whole column of floats as soon as
    one of its values is missing.
    """
    if value is None or value == "":
        return None
    told = f"{path}: row {row + 1}: {name} is {value!r:.40}"
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise BadInput(f"{told}, not a number") from None
    if not math.isfinite(number):
        raise BadInput(f"{told}, not a number")
    if number < 0:
        raise BadInput(f"{told} but must be at least 0")
    if kind is int and number != int(number):
        raise BadInput(f"{told} but must be a whole number")
    return kind(number)
