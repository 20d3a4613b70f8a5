"""Compares the stored tables of a run with the replay, cell by cell."""

import gc
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kvscope import tables
from kvscope.judge.twin.columns import JOBS, Columns, Tables
from kvscope.judge.twin.evidence import NEEDS, ROWS
from kvscope.judge.twin.rows import COLUMNS, KEYS
from kvscope.judge.twin.rules import Rules
from kvscope.judge.twin.told import TOLERANCE_S, Prompts, told
from kvscope.judge.twin.twin import Twin
from kvscope.tables.added import job_table
from kvscope.tables.copies import OUT
from kvscope.tables.evidence import PASSES

OPTIONAL = {
    (table.name, column.name)
    for table in tables.HOST_TABLES
    for column in table.columns
    if column.can_lack
}
"""Columns that a run may lack altogether."""
MOST = 3
"""Number of columns that are named if several differ."""


@dataclass(frozen=True)
class Difference:
    """A column that differs from the replay: the number of its cells, and the first of them in
    words."""

    column: str
    step: int
    words: str
    count: int = 1


@dataclass
class Comparison:
    """Replay of a run, and the differences from it."""

    cells: int = 0
    differences: list[Difference] = field(default_factory=list)

    @property
    def count(self) -> int:
        """The number of cells, rows and decisions that differ."""
        return sum(difference.count for difference in self.differences)

    @property
    def columns(self) -> list[str]:
        """The columns that differ, that of the earliest pass first."""
        ordered = sorted(self.differences, key=lambda difference: difference.step)
        return list(dict.fromkeys(difference.column for difference in ordered))

    @property
    def words(self) -> str:
        """The first difference of each of the first columns, by pass, and how many more differ."""
        first: dict[str, str] = {}
        for difference in sorted(self.differences, key=lambda difference: difference.step):
            first.setdefault(difference.column, difference.words)
        sentences = [*first.values()]
        more = [f"and {len(sentences) - MOST} more"] if len(sentences) > MOST else []
        return "; ".join([*sentences[:MOST], *more])


def compare(
    repeats: Iterable[tuple[int, Tables]], rules: Rules, evidence: Collection[str], prompts: Prompts
) -> Comparison:
    """Compare each repeat with its replay, as far as the run has evidence."""
    result = Comparison()
    if PASSES in evidence:
        for number, run in repeats:
            with _no_collection():
                _compare(result, number, run, rules, frozenset(evidence), prompts)
    return result


@contextmanager
def _no_collection() -> Iterator[None]:
    """Suspend garbage collection: hundreds of thousands of rows are made, and all are kept."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _compare(
    result: Comparison,
    repeat: int,
    run: Tables,
    rules: Rules,
    evidence: frozenset[str],
    prompts: Prompts,
) -> None:
    try:
        twin = Twin(rules, told(run, evidence), prompts, evidence)
    except Exception as error:
        words = f"nothing can be replayed (repeat {repeat}): {_said(error)}"
        result.differences.append(Difference("replay", 0, words))
        return
    try:
        twin.play()
    except Exception as error:
        words = f"the replay ends at pass {twin.step} (repeat {repeat}): {_said(error)}"
        result.differences.append(Difference("replay", twin.step, words))
        return
    for step, words, needs in twin.problems:
        if evidence.issuperset(needs):
            words = f"{words} (repeat {repeat}, pass {step})"
            result.differences.append(Difference("decisions", step, words))
    for name, rows in twin.rows.finished().items():
        _Table(result, name, repeat, Columns(run[name]), evidence).compare(rows)
    result.differences += _jobs(repeat, Columns(run[JOBS]), twin)


def _said(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()


class _Table:
    """The comparison of one table of a repeat."""

    def __init__(
        self,
        result: Comparison,
        name: str,
        repeat: int,
        stored: Columns,
        evidence: frozenset[str],
    ) -> None:
        self.result, self.name, self.repeat, self.stored = result, name, repeat, stored
        self.columns, self.keys = COLUMNS[name], COLUMNS[name][: KEYS[name]]
        self.compared = {
            column for column, needs in NEEDS[name].items() if evidence.issuperset(needs)
        }
        self.rows_known = evidence.issuperset(ROWS[name])

    def compare(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Add what differs from these rows."""
        expected: list[Sequence[Any]] = list(zip(*rows, strict=True)) or [() for _ in self.columns]
        places = self._places(expected)
        if places is not None:
            rows = [row for row, place in zip(rows, places, strict=True) if place is not None]
            expected = list(zip(*rows, strict=True)) or [() for _ in self.columns]
        for column, values in zip(self.columns, expected, strict=True):
            if column in self.compared and column not in self.keys:
                self._column(column, values, expected, places)

    def _places(self, due: list[Sequence[Any]]) -> list[int | None] | None:
        """The stored row of each expected row; None if all are there in order."""
        keys = len(self.keys)
        if all(list(due[number]) == self.stored[key] for number, key in enumerate(self.keys)):
            self.result.cells += len(self.stored) * keys
            return None
        where = defaultdict(list)
        for place, key in enumerate(self.stored.rows(*self.keys)):
            where[key].append(place)
        due_keys = list(zip(*due[:keys], strict=True))
        places = [where[key].pop(0) if where.get(key) else None for key in due_keys]
        if self.rows_known:
            self._rows(due_keys, places, [key for key, more in where.items() for _ in more])
        return places

    def _rows(self, due: list[Any], places: list[int | None], more: list[tuple[Any, ...]]) -> None:
        """Report rows that are missing, unexpected, or in another order."""
        lost = [key for key, place in zip(due, places, strict=True) if place is None]
        for rows, words in ((lost, "lacks a row of the replay"), (more, "has a row too many")):
            if rows:
                sentence = f"{self.name} {words} ({self._place(rows[0])})"
                self._add("rows", self._step(rows[0]), sentence, len(rows))
        stored = [place for place in places if place is not None]
        ordered = self.name != tables.TRANSFERS.name  # the order of a policy's copies is free
        if ordered and not lost and not more and stored != sorted(stored):
            first = due[next(place for place, other in enumerate(stored) if place != other)]
            words = f"{self.name} has its rows in another order ({self._place(first)})"
            self._add("rows", self._step(first), words)

    def _column(
        self,
        column: str,
        due: Sequence[Any],
        keys: list[Sequence[Any]],
        places: list[int | None] | None,
    ) -> None:
        values = self.stored[column]
        if (self.name, column) in OPTIONAL and not self.stored.known(column):
            return
        if places is not None:
            values = [values[place] for place in places if place is not None]
        self.result.cells += len(values)
        if column == "block":
            wrong = _renamed(values, due)
        elif values == list(due):
            return
        else:
            pairs = zip(values, due, strict=True)
            wrong = [row for row, pair in enumerate(pairs) if not _same(*pair)]
        if wrong:
            row = wrong[0]
            key = tuple(values[row] for values in keys[: len(self.keys)])
            shown = "another block" if column == "block" else _shown(due[row])
            words = (
                f"{self.name}.{column} is {_shown(values[row])}, the replay gives {shown} "
                f"({self._place(key)})"
            )
            self._add(column, self._step(key), words, len(wrong))

    def _add(self, column: str, step: int, words: str, count: int = 1) -> None:
        self.result.differences.append(Difference(f"{self.name}.{column}", step, words, count))

    def _step(self, key: tuple[Any, ...]) -> int:
        """The pass of a row; rows of `requests` come last."""
        step = key[0] if self.keys[0] == "step" else None
        return step if isinstance(step, int) else 1 << 40

    def _place(self, key: tuple[Any, ...]) -> str:
        names = {"step": "pass", "request_id": "request"}
        parts = (f"{names.get(k, k)} {value}" for k, value in zip(self.keys, key, strict=True))
        return ", ".join([f"repeat {self.repeat}", *parts])


def _same(found: Any, due: Any) -> bool:
    """Whether a stored value equals the expected value, or lies in its range."""
    if isinstance(due, tuple):
        return found is not None and bool(due[0] <= found <= due[1])
    if found is None or due is None:
        return found is due
    if isinstance(due, float) or isinstance(found, float):
        return bool(abs(found - due) <= TOLERANCE_S)
    return bool(found == due)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        low, high = value
        return str(low) if low == high else f"{low} to {high}"
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def _renamed(values: Sequence[Any], due: Sequence[Any]) -> list[int]:
    """Rows in which the mapping from blocks to the replay's numbers is not one to one."""
    number: dict[Any, Any] = {}
    serial: dict[Any, Any] = {}
    return [
        row
        for row, (block, twin) in enumerate(zip(values, due, strict=True))
        if number.setdefault(twin, block) != block or serial.setdefault(block, twin) != twin
    ]


def _jobs(repeat: int, jobs: Columns, twin: Twin) -> Iterator[Difference]:
    """Compare the bytes of jobs, the loaded blocks of stores, and the passes that awaited
    stores."""
    table = job_table()
    name = table.table.name if table else JOBS
    names = ("step", "job", "direction", "blocks", "bytes", "loaded_blocks", "awaited_step")
    for step, job, direction, blocks, moved, loaded, awaited in jobs.rows(*names):
        values: list[tuple[str, Any, Any]] = [("bytes", moved, blocks * twin.rules.block_bytes)]
        if direction == OUT and twin.offloading and job in twin.offloading.stores:
            values.append(("loaded_blocks", loaded, twin.offloading.stores[job].loaded_blocks))
            values.append(("awaited_step", awaited, twin.offloading.awaited(job, awaited)))
        for column, stored, expected in values:
            if not _same(stored, expected):
                words = f"{name}.{column} is {stored}, the replay gives {_shown(expected)}"
                place = f"repeat {repeat}, pass {step}, job {job}"
                yield Difference(f"{name}.{column}", step, f"{words} ({place})")
