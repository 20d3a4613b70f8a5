"""A study's experiments as the report reads them: its settings, what happened, its numbers."""

import math
import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from kvscope.base.errors import BadInput
from kvscope.base.quantities import plural
from kvscope.base.statistics import UNKNOWN, Interval
from kvscope.base.time_sources import MODELED, NOT_MEASURED, REHEARSED, time_source_of
from kvscope.metrics.estimates import Estimates, ExperimentMetrics
from kvscope.metrics.measure import Measure
from kvscope.plan.figures import GRID, Axes
from kvscope.plan.question import Question
from kvscope.plan.traits import (
    ChosenOption,
    Compared,
    Settings,
    flat,
    following_limits,
    tell_apart,
    value_of,
)
from kvscope.report.latencies import Latencies, latencies_of
from kvscope.tables.run_data import RunData
from kvscope.tables.runschema import COMPLETE, NO_RECORD, RunRecord
from kvscope.tables.verdict import Verdict

# States of an experiment without results, beside 'failed'.
NOT_RUN = "not run"
RUNNING = "running"
INTERRUPTED = "interrupted"
NOT_ANALYSED = "not analysed"
STALE = "stale"
DAMAGED = "damaged"
# Those whose records are there and cannot be shown: the report refuses them by name.
REFUSED = (NOT_ANALYSED, STALE, DAMAGED)
OF_REHEARSED = " (rehearsed)"  # at the end of a label
MOST_NAMED = 3  # experiments that are named beside others


@dataclass(frozen=True)
class ReportedRun:
    """The run of an experiment of a study, as the report reads it; there may be none yet.

    `record` is its run.json, NO_RECORD where there is none, and `settings` its experiment.yaml;
    `metrics` is its `metrics` table indexed by metric, None unless the run is complete and every
    file behind them is as recorded; `repeat_metrics` is read only if it was measured in rounds.
    `status` is 'complete', 'failed', or one of the states above, and `failure` says why if it is
    not complete. `doubts` are the reasons against it in figures, `circumstances` those of its
    measurement, `verdicts` those of the oracles.
    `again` says what became of a new measurement that was requested, if it is not there yet.
    `reader` makes the records of a directory, given its record and settings.
    """

    id: str
    label: str
    varied: dict[str, Any]
    directory: Path
    record: RunRecord = NO_RECORD
    settings: dict[str, Any] = field(default_factory=dict)
    grid: str = ""
    metrics: pd.DataFrame | None = None
    repeat_metrics: pd.DataFrame | None = None
    status: str = COMPLETE
    failure: str = ""
    doubts: tuple[str, ...] = ()
    circumstances: tuple[str, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    again: str = ""
    reader: Callable[..., RunData] | None = None
    log: Path | None = None
    log_tail: str = ""

    @property
    def complete(self) -> bool:
        """Whether the experiment's run is complete."""
        return self.status == COMPLETE

    @property
    def reasons(self) -> list[str]:
        """Names of what speaks against a complete run; empty if it is valid."""
        return [] if self.metrics is None else _names(self.metrics["reasons"].iloc[0])

    @property
    def valid(self) -> bool:
        """Whether the run is complete and no reason speaks against it."""
        return self.metrics is not None and bool(self.metrics["valid"].iloc[0])

    @property
    def time_source(self) -> str | None:
        """'measured', 'modeled', …; None of a run without numbers."""
        return None if self.metrics is None else self.source

    @property
    def rehearsed(self) -> bool:
        """Whether a CPU was in the place of its GPU, by its record or by any of its tables."""
        return self.source == REHEARSED

    @cached_property
    def source(self) -> str:
        """The source of its times, whether or not it has numbers: see `time_source_of`."""
        sources = set() if self.metrics is None else {*self.metrics["time_source"]}
        with suppress(BadInput):  # of a damaged table, which shows no number
            sources |= self.records.table_sources
        return time_source_of(self.record.time_source, sources)

    @property
    def repeats(self) -> list[int]:
        """Numbers of the repeats that were recorded."""
        return [entry.repeat for entry in self.record.clock.repeats]

    @property
    def in_rounds(self) -> bool:
        """Whether its repeats were measured in the rounds of a campaign."""
        return any(entry.round for entry in self.record.clock.repeats)

    def changed(self, **fields: Any) -> "ReportedRun":
        """The run with other fields; the source of its times stays as it was read."""
        return replace(self, **fields).known_source(self.source)

    def known_source(self, source: str) -> "ReportedRun":
        """The run, of whose times the source is known: its tables need not be read for it."""
        vars(self)["source"] = source
        return self

    @property
    def records(self) -> RunData:
        """The records of the experiment's run; BadInput where there is nothing to read them."""
        if self.reader is None:
            raise BadInput(f"{self.directory}: the records of this run are not read")
        return self.reader(self.directory, record=self.record, settings=self.settings)

    @cached_property
    def as_measured(self) -> ExperimentMetrics | None:
        """Its settings, metrics and repeats; None without metrics."""
        if self.metrics is None:
            return None
        return ExperimentMetrics(self.settings, self.metrics, self.repeat_metrics)

    def number(self, metric: str) -> Interval:
        """A metric's value and interval; NaN where the run or the metric has none."""
        return self.as_measured.estimate(metric) if self.as_measured else UNKNOWN

    def believed(self, metric: str) -> bool:
        """Whether a metric is valid; a metric that compares runs needs all of them to be valid."""
        metrics = self.metrics
        return metrics is not None and metric in metrics.index and bool(metrics.at[metric, "valid"])

    @property
    def adjusted(self) -> bool:
        """Whether its times are as if nothing had waited for a CPU."""
        return self.metrics is not None and bool(self.metrics["adjusted"].any())

    @cached_property
    def latencies(self) -> Latencies:
        """Latencies of its requests, of all repeats whose times count."""
        requests = self.records.requests
        return latencies_of(requests[requests["repeat"].isin(self.timed)])

    @cached_property
    def timed(self) -> list[int]:
        """Numbers of the repeats whose times count."""
        return self.records.timed

    def steps(self, repeat: int) -> pd.DataFrame:
        """The forward passes of one repeat, in order."""
        steps = self.records.steps
        return steps[steps["repeat"] == repeat].sort_values("step", ignore_index=True)

    @cached_property
    def flat(self) -> dict[str, Any]:
        """All its settings as dotted keys; a group has the name of its option."""
        return {key.removesuffix(".name"): value for key, value in flat(self.settings)}

    @property
    def seed(self) -> int:
        """The seed of all that was drawn."""
        return int(self.settings.get("seed", 0))

    @cached_property
    def has_passes(self) -> bool:
        """Whether forward passes were recorded; a published trace of kernels has none."""
        return bool(self.repeats) and self.records.has_rows("steps")

    def preemptions(self, repeat: int) -> pd.DataFrame:
        """The preemptions and resumptions of one repeat, in order."""
        events = self.records.preemptions
        return events[events["repeat"] == repeat].reset_index(drop=True)

    def transfers(self, repeat: int) -> pd.DataFrame:
        """The copies between the KV cache and the host of one repeat, in order."""
        copies = self.records.copies
        return copies[copies["repeat"] == repeat].reset_index(drop=True)


@dataclass(frozen=True)
class FigureRequest:
    """A figure that a study requests, with the axes that it declares for it, if any."""

    name: str
    axes: tuple[Axes, ...] = ()


@dataclass(frozen=True)
class StudyData:
    """A study: its words, the keys that vary, its experiments in the plan's order.

    `compared` says how these are told apart and compared.
    """

    name: str
    title: str
    description: str
    keys: tuple[str, ...]
    runs: tuple[ReportedRun, ...]
    figures: tuple[FigureRequest, ...] = ()
    question: Question | None = None
    planned: bool = True  # False for runs that were given by their directories
    base: str | None = None  # the study that `overrides` vary; None for the defaults
    overrides: tuple[str, ...] = ()
    compared: Compared = field(default_factory=Compared)

    @property
    def traits(self) -> dict[str, Settings]:
        """Distinguishing traits of each run, by id (see `traits`)."""
        return self.compared.traits

    @cached_property
    def limits(self) -> set[str]:
        """Limits of the engine that another trait settles."""
        return following_limits([*self.traits.values()])

    def part(self, runs: Sequence[ReportedRun]) -> "StudyData":
        """The study of some of its runs alone, told apart among themselves; without figures."""
        ids, varied = [run.id for run in runs], [run.varied for run in runs]
        apart = tell_apart(ids, varied, [run.label.removesuffix(OF_REHEARSED) for run in runs])
        pairs = {
            key: [pair for pair in pairs if apart.labels.keys() >= {*pair}]
            for key, pairs in self.compared.pairs.items()
        }
        return replace(self, runs=tuple(runs), compared=replace(apart, pairs=pairs), figures=())

    def value(self, run: ReportedRun, key: str) -> Any:
        """A key's value of an experiment: of what varies, or of the settings."""
        if key == GRID:
            return run.grid
        for settings in (self.traits[run.id], run.varied):
            if (value := value_of(settings, key)) is not None:
                return value
        return value_of(dict(run.flat), key)

    def matches(self, run: ReportedRun, axes: Axes) -> bool:
        """Whether an experiment has the values that the axes select."""
        return all(_plain(self.value(run, key)) == value for key, value in axes.where.items())

    @cached_property
    def labels(self) -> dict[str, str]:
        """Each run's label, by its id, among the runs of this study or of a part of one."""
        return labels(self.runs, self.compared)

    def declared_axes(self, figure: str) -> tuple[Axes, ...]:
        """The axes that the study declares for a figure; empty if it declares none."""
        return next((request.axes for request in self.figures if request.name == figure), ())

    def axes_of(self, declared: Sequence[Axes], default: Axes | None = None) -> Sequence[Axes]:
        """The axes declared for a figure, else the figure's own, else the first declared."""
        if default and not declared:
            return (default,)
        return declared or next((request.axes for request in self.figures if request.axes), ())

    @cached_property
    def estimates(self) -> Estimates:
        """Comparisons between experiments that have results, by their ids."""
        measured = {run.id: run.as_measured for run in self.complete}
        return Estimates({id_: row for id_, row in measured.items() if row})

    @cached_property
    def complete(self) -> list[ReportedRun]:
        """The experiments that have results."""
        return [run for run in self.runs if run.complete]

    @property
    def unfinished(self) -> list[ReportedRun]:
        """The experiments without results."""
        return [run for run in self.runs if not run.complete]

    @property
    def again(self) -> list[ReportedRun]:
        """The experiments with results that are to be measured again."""
        return [run for run in self.complete if run.again]

    @property
    def doubtful(self) -> list[ReportedRun]:
        """The experiments with results that are not valid."""
        return [run for run in self.complete if not run.valid]

    @property
    def reasons(self) -> list[str]:
        """The names of the reasons against its experiments, each once."""
        return list(dict.fromkeys(name for run in self.complete for name in run.reasons))

    def count(self, wanted: Callable[[ReportedRun], bool]) -> int:
        """How many experiments are as wanted."""
        return sum(1 for run in self.runs if wanted(run))

    @property
    def options(self) -> str:
        """Arguments of `snakemake --config` that make this study again."""
        if not self.overrides:
            return f"study={self.name}"
        study = f"study={self.base} " if self.base else ""
        return f'{study}overrides="{shlex.join(self.overrides)}"'

    @property
    def finished(self) -> bool:
        """Whether every experiment has results and none waits to be measured again."""
        return all(run.complete and not run.again for run in self.runs)

    @property
    def time_sources(self) -> set[str]:
        """Sources of the times of this study: 'measured', 'modeled', …"""
        return {source for run in self.runs if (source := run.time_source)}

    @property
    def modeled(self) -> bool:
        """Whether any number of the study comes from a cost model."""
        return MODELED in self.time_sources

    @cached_property
    def rehearsed(self) -> list[ReportedRun]:
        """The experiments in which a CPU was in the place of a GPU."""
        return [run for run in self.runs if run.rehearsed]

    @cached_property
    def mark(self) -> str:
        """'rehearsed, not measured' where any number of the study is rehearsed, else ''.

        Beside others, with the names of those that are.
        """
        if len(self.rehearsed) == len(self.runs) or not self.rehearsed:
            return NOT_MEASURED if self.rehearsed else ""
        few = len(self.rehearsed) <= MOST_NAMED
        names = "; ".join(run.label.removesuffix(OF_REHEARSED) for run in self.rehearsed)
        return f"{NOT_MEASURED}: {names if few else plural(len(self.rehearsed), 'experiment')}"

    @property
    def counted(self) -> list[ReportedRun]:
        """The experiments that have results, of one kind: see `of_one_kind`."""
        return of_one_kind(self.complete)


def labels(runs: Sequence[ReportedRun], compared: Compared) -> dict[str, str]:
    """The label of each run, by its id; a rehearsed run beside others is named as one."""
    apart = len({run.rehearsed for run in runs}) > 1
    return {
        run.id: compared.labels[run.id] + OF_REHEARSED * (apart and run.rehearsed) for run in runs
    }


def _plain(value: Any) -> Any:
    """A value as a study writes it: of an option the name, whatever its settings."""
    return value.name if isinstance(value, ChosenOption) else value


def of_one_kind(runs: Sequence[ReportedRun]) -> list[ReportedRun]:
    """The runs that were not rehearsed; all of them where each was. Others are not compared."""
    return [run for run in runs if not run.rehearsed] or [*runs]


def _names(joined: str) -> list[str]:
    return [name for name in joined.split(";") if name]


def of_interest(shown: Measure, runs: Iterable[ReportedRun]) -> bool:
    """Whether a run has the metric; an optional metric must also differ from 0."""
    values = (run.number(shown.name).value for run in runs)
    return any(not math.isnan(value) and (not shown.optional or value != 0) for value in values)
