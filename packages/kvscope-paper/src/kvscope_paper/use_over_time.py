"""Figure 11: the KV cache of the GPU and that of the host in use over time, published and ours.

The abstract's Figure 4 is of the same kind, with the throughput above.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pandas as pd

from kvscope.api.figures import charts, theme
from kvscope.api.sections import ReportedRun, StudyData
from kvscope.api.wording import traits
from kvscope_paper.arrays import Floats
from kvscope_paper.comparison import device_words
from kvscope_paper.published.cache_use import GPU, HOST, SPANS, published_use, thin
from kvscope_paper.series_look import COLUMN, INK, PALE, remark_lines

RATE = "throughput"
HEIGHTS = {RATE: 90, GPU: 90, HOST: 56}
TITLES = {
    RATE: ["throughput", "(tokens/s)"],
    GPU: ["GPU KV cache", "in use (%)"],
    HOST: ["host pool", "in use (%)"],
}
AXIS_PX = 64
WINDOW_S = 1.0  # of a throughput, as the artifact's logs of the abstract's runs have it
PUBLISHED, OURS = "published", "ours"
WIDE, NARROW = 3.2, 0.8  # px: ours lies on what was published
THINNED = (
    "Published after each pass, ours during it: what ending requests leave free is in the former. "
    f"Of each 1/{SPANS} of the time the smallest and the largest value."
)
WINDOWS = f"Throughput: prompt and output tokens, averaged over {WINDOW_S:g} s."
UNPUBLISHED = "The series of this figure is not in the paper's artifact: ours alone."

Series = tuple[Floats, Floats]
"""Seconds since the run began, and values."""


def draw_use(study: StudyData, figure: str) -> charts.Drawing | None:
    """GPU and host in use, by policy: the published series, and ours of each device on it."""
    all_published = published_use()
    published = all_published[all_published["figure"] == figure].assign(source=PUBLISHED)
    kinds = {memory: _use_of(memory) for memory in (GPU, HOST)}
    return _strips(study, kinds, published, [THINNED])


def draw_use_and_throughput(study: StudyData, _: str) -> charts.Drawing | None:
    """Throughput, GPU and host in use, by policy; ours alone."""
    kinds = {RATE: throughput, GPU: _use_of(GPU), HOST: _use_of(HOST)}
    return _strips(study, kinds, published_use().head(0), [UNPUBLISHED, WINDOWS])


def throughput(steps: pd.DataFrame) -> Series:
    """Tokens that the passes of each WINDOW_S computed, per second, from its begin on.

    The tokens of a pass are spread evenly over its time.
    """
    instants = np.ravel(np.column_stack([steps["start_s"], steps["start_s"] + steps["duration_s"]]))
    done = np.cumsum(steps["scheduled_tokens"].to_numpy(float))
    computed = np.ravel(np.column_stack([np.concatenate([[0.0], done[:-1]]), done]))
    edges_s = np.arange(0, instants[-1] + WINDOW_S, WINDOW_S)
    return edges_s[:-1], np.diff(np.interp(edges_s, instants, computed)) / WINDOW_S


def _use_of(memory: str) -> Callable[[pd.DataFrame], Series]:
    column = {GPU: "kv", HOST: "host"}[memory]

    def use(steps: pd.DataFrame) -> Series:
        """Percent in use during each pass, at its end."""
        total = steps[f"{column}_blocks_total"].to_numpy(float).clip(min=1)
        percent = 100 * steps[f"{column}_blocks_used"].to_numpy(float) / total
        at_s = (steps["start_s"] + steps["duration_s"]).to_numpy(float)
        kept = thin(at_s, percent)
        return at_s[kept], percent[kept]

    return use


def _strips(
    study: StudyData,
    kinds: dict[str, Callable[[pd.DataFrame], Series]],
    published: pd.DataFrame,
    remarks: Sequence[str],
) -> charts.Drawing | None:
    """A plot for each policy and kind of series; None without experiments."""
    runs = [run for run in study.runs if run.has_passes]
    if not runs:
        return None
    ours = [_points(run, kind, series) for run in runs for kind, series in kinds.items()]
    points = pd.concat([published.rename(columns={"percent": "value"}), *ours])
    cells = list(_cells(points, [*kinds]))
    data = {f"strip{place}": frame for place, (_, _, frame) in enumerate(cells)}
    sources = list(dict.fromkeys(points["source"]))
    last_s = float(points["at_s"].max())
    alone = [f"{source.capitalize()}." for source in sources if len(sources) == 1]
    plots = [
        _chart(f"strip{place}", cell, sources, last_s, place == len(cells) - 1)
        for place, cell in enumerate(cells)
    ]
    chart = charts.grid(plots, 1) | {"spacing": 10}
    chart["resolve"]["scale"]["strokeWidth"] = "shared"
    return charts.Drawing(
        (charts.View(chart, data),), remarks=remark_lines([*remarks, *alone], COLUMN)
    )


def _points(run: ReportedRun, kind: str, series: Callable[[pd.DataFrame], Series]) -> pd.DataFrame:
    at_s, values = series(run.steps(run.repeats[0]))
    return pd.DataFrame(
        {
            "policy": run.settings["overflow"]["name"],
            "memory": kind,
            "source": f"{OURS}, {_device(run)}",
            "at_s": at_s.round(2),
            "value": values.round(2),
        }
    )


def _cells(points: pd.DataFrame, kinds: Sequence[str]) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Policy, kind and points of each plot; none of a host that is never used."""
    for policy in dict.fromkeys(points["policy"]):
        for kind in kinds:
            of_policy = points[(points["policy"] == policy) & (points["memory"] == kind)]
            if of_policy["value"].any():
                yield policy, kind, of_policy[["source", "at_s", "value"]]


def _chart(
    name: str,
    cell: tuple[str, str, pd.DataFrame],
    sources: Sequence[str],
    last_s: float,
    is_last: bool,
) -> charts.Spec:
    policy, kind, _ = cell
    time = {"title": "Time since the run began (s)"} if is_last else {"title": None}
    percent = {"scale": {"domain": [0, 100]}, "axis": {"values": [0, 50, 100]}}
    y = percent if kind == GPU else {"scale": {"zero": True}, "axis": {"tickCount": 3}}
    widths = [WIDE if source == PUBLISHED else NARROW for source in sources]
    hues = [PALE, INK, *theme.PALETTE[2:]][PUBLISHED not in sources :]
    legend = {"symbolType": "stroke", "symbolSize": 300} if len(sources) > 1 else None

    def channel(values: Sequence[float | str]) -> charts.Spec:
        scale = {"domain": list(sources), "range": list(values[: len(sources)])} | {
            "type": "ordinal"
        }
        return charts.text("source", scale=scale, legend=legend)

    return {
        "data": {"name": name},
        "title": {"text": policy, "fontWeight": "normal", "offset": 3},
        "width": COLUMN - AXIS_PX,
        "height": HEIGHTS[kind],
        "mark": {"type": "line", "interpolate": "step-after", "clip": True},
        "encoding": {
            "x": charts.number(
                "at_s",
                **time,
                scale={"domain": [0, last_s], "nice": False},
                axis={"labels": is_last, "tickCount": 6},
            ),
            "y": charts.number("value", title=TITLES[kind], **y),
            "color": channel(hues),
            "strokeWidth": channel(widths),
        },
    }


def _device(run: ReportedRun) -> str:
    return device_words(dict(traits.flat(run.settings)))
