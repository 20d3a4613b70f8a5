"""A study's tables: metrics, experiments, ratios of what is compared, the page's experiments."""

import io
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from kvscope import tables
from kvscope.base.files import write_text
from kvscope.base.statistics import Interval
from kvscope.base.time_sources import REHEARSED
from kvscope.metrics.estimates import ADJUSTED as ADJUSTED_HOW
from kvscope.metrics.measure import Measure
from kvscope.metrics.study import column_measures
from kvscope.plan.traits import is_number, key_title, value_text, value_words
from kvscope.report.comparisons import pairs
from kvscope.report.data import ReportedRun, StudyData, of_interest
from kvscope.report.words import estimate_text
from kvscope.tables.column import derived, fact

EXPERIMENTS_FILE = "experiments.csv"
COMPARISONS_FILE = "comparisons.csv"
STUDY_FILES = (tables.METRICS.file, tables.COMPARISONS.file, COMPARISONS_FILE, EXPERIMENTS_FILE)
"""What `write_tables` writes."""

HARDLY = 0.02  # of the largest value: within it, a metric hardly varies
MOST = 0.8  # of the experiments: if more have one value, a key hardly varies
MOST_ROWS = 500  # of the page's table; experiments.csv has all
MOST_COMPARED = 24  # experiments, of which each is compared with each

ADJUSTED = derived("adjusted", tables.BOOL, "whether value is as if nothing had waited")


def study_metrics(keys: tuple[str, ...]) -> tables.Table:
    """The `metrics` table with one text column a varied key after the experiment, and ADJUSTED."""
    first, *rest = tables.METRICS.columns
    varied = (fact(key, tables.TEXT, f"value of {key}; null if none") for key in keys)
    return tables.Table(tables.METRICS.name, tables.METRICS.row, (first, *varied, *rest, ADJUSTED))


def metrics_frame(study: StudyData) -> pd.DataFrame:
    """The metrics of all complete experiments."""
    table = study_metrics(study.keys)
    frames = [
        run.metrics.assign(**{key: _text(run, key) for key in study.keys})
        for run in study.complete
        if run.metrics is not None
    ]
    if not frames:
        return table.empty()
    return pd.concat(frames, ignore_index=True)[table.names]


def main_columns(study: StudyData) -> list[Measure]:
    """The main metrics that the study has: no overhead where nothing is preempted."""
    return [
        shown
        for shown in column_measures()
        if not shown.optional or of_interest(shown, study.complete)
    ]


def experiments_frame(study: StudyData) -> pd.DataFrame:
    """One row an experiment: what it is, whether to believe it, its main metrics.

    A metric keeps its table's name and unit; `_ci_low` and `_ci_high` are its 95 % interval. Times
    of one that is `adjusted` are as if nothing had waited for a CPU. Where
    packs ran experiments, `node`, `neighbours` (how many) and `gpu_uuids` say where.
    """
    columns = main_columns(study)
    rows = [_row(run, study.keys, columns) for run in study.runs]
    if any(run.record.states("placement") for run in study.runs):
        rows = [row | _placement(run) for row, run in zip(rows, study.runs, strict=True)]
    return pd.DataFrame(rows)


def write_tables(study: StudyData, out: Path) -> None:
    """Write all of them into `out`: metrics and comparisons as Parquet, too."""
    tables.write(study_metrics(study.keys), metrics_frame(study), out / tables.METRICS.file)
    compared = comparisons_frame(study)
    tables.write(tables.COMPARISONS, compared, out / tables.COMPARISONS.file)
    _write_csv(compared, out / COMPARISONS_FILE)
    _write_csv(experiments_frame(study), out / EXPERIMENTS_FILE)


def _write_csv(frame: pd.DataFrame, path: Path) -> None:
    buffer = io.StringIO()
    frame.to_csv(buffer, index=False, lineterminator="\n")
    write_text(path, buffer.getvalue())


def comparisons_frame(study: StudyData) -> pd.DataFrame:
    """The `comparisons` table: the main metrics of all pairs that are compared."""
    metrics = main_columns(study)
    rows = [
        (
            *(pair.base.id, pair.other.id, pair.key, shown.name),
            *_of_ratio(compared.ratio, pair.rehearsed),
            *(compared.apart.value, compared.apart.low, compared.apart.high),
        )
        for pair in pairs(study)
        for shown in metrics
        if (compared := pair.compared(shown.name))
    ]
    return pd.DataFrame(rows, columns=tables.COMPARISONS.names)


def _of_ratio(one: Interval | None, rehearsed: bool) -> tuple[Any, ...]:
    if one is None:
        return (math.nan, math.nan, math.nan, 0, False, REHEARSED if rehearsed else None)
    return (one.value, one.low, one.high, one.count, one.how == ADJUSTED_HOW, one.how)


def _row(run: ReportedRun, keys: tuple[str, ...], columns: Sequence[Measure]) -> dict[str, object]:
    row: dict[str, object] = {"id": run.id, "label": run.label}
    row |= {key: _text(run, key) for key in keys}
    row |= {
        "status": run.status,
        "valid": run.valid if run.complete else None,
        "reasons": ";".join(run.reasons) if run.complete else run.failure,
        "time_source": run.time_source,
        "adjusted": run.adjusted if run.complete else None,
    }
    for shown in columns:
        number = run.number(shown.name)
        for suffix, value in (
            ("", number.value),
            ("_ci_low", number.low),
            ("_ci_high", number.high),
        ):
            row[shown.name + suffix] = None if math.isnan(value) else value
    return row


def _placement(run: ReportedRun) -> dict[str, object]:
    """The node of a pack's run, the number of its neighbours, and the GPUs' UUIDs."""
    placement = run.record.placement
    gpus = placement.gpus.before if placement.gpus else []
    return {
        "node": placement.node,
        "neighbours": len(placement.neighbours) if placement.states("neighbours") else None,
        "gpu_uuids": ";".join(gpu.uuid for gpu in gpus) or None,
    }


def _text(run: ReportedRun, key: str) -> str | None:
    value = run.varied.get(key)
    return None if value is None else value_text(value)


Differences = dict[str, dict[str, list[float | None]]]


@dataclass(frozen=True)
class ShownColumn:
    """A column: a key or a metric. One that is `folded` is shown if it is chosen."""

    heading: str
    unit: str = ""
    better: int = 0
    folded: bool = False
    number: bool = True


@dataclass(frozen=True)
class Cell:
    """A value as text, and as what it is sorted and compared by; `best` of its column."""

    text: str
    half: str = ""
    value: float | None = None
    best: bool = False


@dataclass(frozen=True)
class ExperimentsTable:
    """Columns, the cells of each experiment by its id, and metrics that hardly vary, in words.

    `differences` are those of valid experiments by column, experiment and base, in percent of the
    base: lower end, value and upper end, None where there is none. Empty of many experiments.
    Of more than MOST_ROWS experiments only those have cells that are not valid, and the first
    others.
    """

    columns: tuple[ShownColumn, ...]
    cells: dict[str, list[Cell]]
    hardly_vary: tuple[str, ...]
    differences: dict[str, Differences]


def experiments_table(study: StudyData) -> ExperimentsTable:
    """The table of a study: the keys that vary, then the main metrics."""
    keys = list(dict.fromkeys(key for traits in study.traits.values() for key in traits))
    metrics = main_columns(study)
    same = {shown for shown in metrics if _hardly_varies(study, shown)}
    columns = [
        _of_key(study, key, key in study.limits or _adds_little(study, key, keys[:place]))
        for place, key in enumerate(keys)
    ]
    columns += [
        ShownColumn(
            shown.heading, shown.display_unit, shown.better, folded=not shown.first or shown in same
        )
        for shown in metrics
    ]
    best = {shown: _best(study, shown) for shown in metrics if shown not in same}
    counted = {run.id for run in study.counted}
    return ExperimentsTable(
        tuple(columns),
        {
            run.id: [_setting(study.traits[run.id].get(key)) for key in keys]
            + [
                _metric(run, shown, best.get(shown) if run.id in counted else None)
                for shown in metrics
            ]
            for run in _shown_runs(study)
        },
        tuple(f"{shown.heading} {_range(study, shown)}" for shown in metrics if shown in same),
        {
            str(column): _differences(study, shown)
            for column, shown in enumerate(metrics, len(keys))
            if len(study.complete) <= MOST_COMPARED
        },
    )


def _shown_runs(study: StudyData) -> Sequence[ReportedRun]:
    """The experiments that have a row, those that are not valid before others."""
    return sorted(study.runs, key=lambda run: run.valid)[:MOST_ROWS]


def _differences(study: StudyData, shown: Measure) -> Differences:
    valid = [run for run in study.complete if run.believed(shown.name)]
    return {run.id: dict(_from_bases(study, shown, run, valid)) for run in valid}


def _from_bases(
    study: StudyData, shown: Measure, run: ReportedRun, bases: Sequence[ReportedRun]
) -> Iterator[tuple[str, list[float | None]]]:
    for base in bases:
        if base is not run and (ratio := study.estimates.ratio(shown.name, run.id, base.id)):
            ends = (100 * (end - 1) for end in (ratio.low, ratio.value, ratio.high))
            yield base.id, [round(end, 2) if math.isfinite(end) else None for end in ends]


def _of_key(study: StudyData, key: str, folded: bool) -> ShownColumn:
    values = [traits.get(key) for traits in study.traits.values()]
    number = all(value is None or is_number(value) for value in values)
    return ShownColumn(key_title(key), folded=folded, number=number)


def _adds_little(study: StudyData, key: str, earlier: list[str]) -> bool:
    return _rarely_differs(study, key) or _names_the_same(study, key, earlier)


def _names_the_same(study: StudyData, key: str, earlier: list[str]) -> bool:
    """Whether the values of an earlier key distinguish the runs exactly as those of `key` do."""
    runs = list(study.traits.values())
    return any(
        len({(str(run.get(key)), str(run.get(other))) for run in runs})
        == len({str(run.get(key)) for run in runs})
        == len({str(run.get(other)) for run in runs})
        for other in earlier
    )


def _rarely_differs(study: StudyData, key: str) -> bool:
    values = Counter(value_words(study.traits[run.id].get(key)) for run in study.runs)
    return values.most_common(1)[0][1] > MOST * len(study.runs)


def _setting(value: Any) -> Cell:
    return Cell(value_words(value), value=float(value) if is_number(value) else None)


def _metric(run: ReportedRun, shown: Measure, best: float | None) -> Cell:
    number = run.number(shown.name)
    text, half = estimate_text(number, shown)
    value = None if math.isnan(number.value) else number.value
    return Cell(text, half, value, best is not None and value == best and run.valid)


def _numbers(study: StudyData, shown: Measure) -> list[Interval]:
    numbers = (run.number(shown.name) for run in study.counted)
    return [number for number in numbers if not math.isnan(number.value)]


def _hardly_varies(study: StudyData, shown: Measure) -> bool:
    """Whether several experiments have the metric, all of them nearly the same value."""
    values = [number.value for number in _numbers(study, shown)]
    spread = max(values, default=0.0) - min(values, default=0.0)
    return len(values) > 1 and spread <= HARDLY * max(map(abs, values))


def _best(study: StudyData, shown: Measure) -> float | None:
    """The best value of the valid experiments; None if neither more nor less is better."""
    values = [run.number(shown.name).value for run in study.counted if run.valid]
    scores = [shown.better * value for value in values if not math.isnan(value)]
    return shown.better * max(scores) if shown.better and len(scores) > 1 else None


def _range(study: StudyData, shown: Measure) -> str:
    """The lowest and the highest value: '0.41 to 0.42 s'."""
    numbers = sorted(_numbers(study, shown), key=lambda number: number.value)
    ends: Sequence[str] = [estimate_text(number, shown)[0] for number in (numbers[0], numbers[-1])]
    return f"{' to '.join(dict.fromkeys(ends))} {shown.display_unit}"
