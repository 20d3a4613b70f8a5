"""The conditions of the measurement: rounds and their order, waiting, other load, drift."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from kvscope.base.quantities import plural
from kvscope.base.time_sources import MEASURED
from kvscope.metrics.circumstances import describe_width, waiting_share
from kvscope.plan import registry
from kvscope.plan.together import SITTINGS
from kvscope.report import theme
from kvscope.report.data import ReportedRun, StudyData
from kvscope.report.figures.figure import Drawing, Spec, View, number, plot_width
from kvscope.report.words import NBSP, percent
from kvscope.tables.run_view import counted_repeats
from kvscope.tables.runschema import StoppingRecord

TITLE = "Conditions of the measurement"
CAPTION = (
    "Each point is a repeat, the line their mean in a round. Waiting: the share of its time in "
    "which an engine was ready without a CPU. Speed: while it ran, relative to the experiment's "
    "median."
)
HEIGHT, LABEL_PX = 80, 52
LEAST_RANGE = 20.0  # percent of an axis: what is less is none to worry about


@dataclass(frozen=True)
class MeasurementConditions:
    """The conditions in one line, and their details: the rounds' orders, each experiment's own."""

    line: str = ""
    orders: tuple[str, ...] = ()
    experiments: tuple[tuple[str, str], ...] = ()

    @property
    def details(self) -> bool:
        """Whether there is more than the line."""
        return bool(self.orders or self.experiments)


def conditions(study: StudyData) -> MeasurementConditions:
    """The conditions of all measured experiments; empty if there are none."""
    runs, repeats = _measured(study), _repeats(study)
    if repeats.empty:
        return MeasurementConditions()
    parts = [_waiting(repeats), _other_load(runs), _drift(repeats)]
    line = "; ".join([_design(runs, repeats), *filter(None, parts)])
    notes = ((run.label, "; ".join(run.circumstances)) for run in runs if run.circumstances)
    return MeasurementConditions(f"{line}.", tuple(_orders(repeats)), tuple(notes))


def caveats(study: StudyData) -> list[str]:
    """The caveats of the experiments' devices, each once."""
    devices = registry.load_all("device")
    names = {str(run.flat.get("device")) for run in study.runs}
    texts = (getattr(devices.get(name), "caveat", "") for name in sorted(names))
    return [words for words in texts if words]


def missed_widths(study: StudyData) -> str:
    """Sentence on intervals that stayed wider than asked; '' if none did.

    Experiments that were measured together have one width. Of several, it is the widest.
    """
    missed = {
        _comparison(run): (run, text)
        for run in study.complete
        if not run.rehearsed and (text := describe_width(run.record))
    }
    if not missed:
        return ""
    widest, sentence = max(missed.values(), key=lambda item: _to_go(item[0].record.repeats))
    if len(missed) == 1:
        return f"{sentence}."
    return f"{len(missed)} intervals are wider than asked; of {widest.label}: {sentence}."


def _comparison(run: ReportedRun) -> tuple[str, float | None]:
    """Key that tells intervals of runs apart: the campaign, or the run itself, and the width."""
    campaign, rule = run.record.campaign, run.record.repeats
    return campaign.id if campaign else run.id, rule.half_width_share if rule else None


def draw(study: StudyData) -> Drawing | None:
    """Waiting and speed by round, a point a repeat and a line of their means."""
    repeats = _repeats(study)
    if repeats["round"].nunique() < 2:
        return None
    x_title = "round" if (repeats["campaign"] != "").any() else "repeat, in order of time"
    shown = [("speed", "Speed while it ran (%)", 90.0)]
    if repeats["waiting"].notna().any():
        shown.insert(0, ("waiting", "Waiting for a CPU (%)", 0.0))
    means = repeats.groupby("round", as_index=False)[["waiting", "speed"]].mean()
    columns = ["round", "experiment", "waiting", "speed"]
    cells = [_cell(repeats[column], title, x_title, least) for column, title, least in shown]
    chart = {"concat": cells, "columns": len(cells)}
    data = {"repeats": repeats[columns], "means": means}
    return Drawing((View(chart, data),), label_px=LABEL_PX)


def _cell(shown: pd.Series, title: str, of: str, least: float) -> Spec:
    """A plot of a column, whose axis shows LEAST_RANGE percent from `least` on, or more."""
    column = str(shown.name)
    domain = [min(least, shown.min()), max(least + LEAST_RANGE, shown.max())]
    x = number("round", title=of, axis={"format": "d", "tickMinStep": 1}, scale={"zero": False})
    y = number(column, title=title, axis={"tickCount": 4}, scale={"domain": domain, "zero": False})
    tooltip = [{"field": "experiment"}, number(column, format=".1f", title=title)]
    points = {"type": "point", "filled": True, "size": 14, "opacity": 0.45, "color": theme.GREY}
    return {
        "width": plot_width(2, LABEL_PX),
        "height": HEIGHT,
        "encoding": {"x": x, "y": y},
        "layer": [
            {"data": {"name": "repeats"}, "mark": points, "encoding": {"tooltip": tooltip}},
            {"data": {"name": "means"}, "mark": {"type": "line", "color": theme.KV_BLOCKS}},
        ],
    }


def _measured(study: StudyData) -> list[ReportedRun]:
    """The experiments whose times are of this kvscope's clock; a rehearsal measures nothing."""
    return [run for run in study.complete if run.source == MEASURED and run.record.load]


def _repeats(study: StudyData) -> pd.DataFrame:
    """A row a repeat: its round, in order of time, and `waiting` and `speed` in percent.

    An experiment that was measured alone has a round for each repeat.
    """
    rows = [row for run in _measured(study) for row in _rows(run)]
    columns = ["experiment", "campaign", "number", "place", "at", "running_s", "waiting"]
    frame = pd.DataFrame(rows, columns=columns)
    frame["waiting"] = frame["waiting"].astype(float)
    medians = frame.groupby("experiment")["running_s"].transform("median")
    frame["speed"] = 100 * medians / frame["running_s"]
    began = frame.groupby(["campaign", "number"])["at"].transform("min")
    frame["round"] = began.rank(method="dense").astype(int)
    return frame.sort_values(["round", "place"], ignore_index=True)


def _rows(run: ReportedRun) -> Iterator[tuple[Any, ...]]:
    began_ns = run.record.clock.run_start_utc_ns or 0
    for entry in counted_repeats(run.record):
        share, place = waiting_share(entry), entry.round
        running_s = entry.duration_s * (1 - (share or 0.0))
        if running_s > 0:
            yield (
                run.label,
                place.campaign if place else "",
                place.number if place else f"{run.id} {entry.repeat}",
                place.place if place else 0,
                began_ns + entry.start_ns,
                running_s,
                None if share is None else 100 * share,
            )


def _design(runs: Sequence[ReportedRun], repeats: pd.DataFrame) -> str:
    """'12 rounds of 9 experiments in random order'."""
    count, together = plural(len(runs), "experiment"), repeats[repeats["campaign"] != ""]
    if together.empty:
        themselves = "itself" if len(runs) == 1 else "themselves"
        return f"{count} by {themselves}, {plural(len(repeats), 'repeat')}"
    campaigns = [run.record.campaign for run in runs]
    groups = len({(campaign.id, *campaign.members) if campaign else () for campaign in campaigns})
    rounds = together.groupby("experiment")["round"].nunique()
    counts = plural(int(rounds.max()), "round")
    if rounds.min() < rounds.max():
        counts = f"{rounds.min()} to {counts}"
    single = any(campaign is not None and campaign.design == SITTINGS for campaign in campaigns)
    alone = ", one engine at a time" if single else ""
    if groups == 1:
        return f"{counts} of {count} in random order{alone}"
    return f"{count} in {groups} groups of {counts} in random order{alone}"


def _waiting(repeats: pd.DataFrame) -> str:
    shares = repeats.groupby("round")["waiting"].mean().dropna() / 100
    if shares.empty:
        return ""
    mean = repeats["waiting"].mean() / 100
    spread = f" ({percent(shares.min())} to {percent(shares.max())})" if len(shares) > 1 else ""
    return f"engines waited for a CPU {percent(mean)} of their time{spread}"


def _other_load(runs: Sequence[ReportedRun]) -> str:
    """Mean use by other processes, over all repeats."""
    loads = [entry for run in runs for entry in run.record.load]
    used = [entry.other_cpus for entry in loads if entry.other_cpus is not None]
    cores = next((entry.cores for entry in loads if entry.cores), None)
    if not used or not cores:
        return ""
    return f"other processes used {sum(used) / len(used):.1f} of {plural(cores, 'CPU')}"


def _drift(repeats: pd.DataFrame) -> str:
    speeds = repeats.groupby("round")["speed"].mean() / 100
    if len(speeds) < 2:
        return ""
    return f"the machine's speed varied by ±{NBSP}{percent(speeds.std())}"


def _orders(repeats: pd.DataFrame) -> Iterator[str]:
    """'Round 1: a, b': the order in which each round served its experiments."""
    together = repeats[repeats["campaign"] != ""]
    for number_, rows in together.groupby("round"):
        yield f"Round {number_}: {', '.join(rows['experiment'])}"


def _to_go(rule: StoppingRecord | None) -> float:
    return (rule.half_width_share or 0.0) / rule.until if rule and rule.until else 0.0
