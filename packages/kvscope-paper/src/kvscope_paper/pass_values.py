"""Values of single forward passes, which Figures 5, 6 and 11 show."""

import math

import pandas as pd

from kvscope.api.sections import ReportedRun
from kvscope_kernels import kv_events
from kvscope_kernels.analyse import events as traced
from kvscope_kernels.analyse.access import trace_to_draw

TOKENS, READS = "tokens", "reads"
OF_EVENTS = {"tokens_written": TOKENS, "k_reads": READS}
UTILIZATION = "kv_block_utilization"
# Of columns of `steps`: tokens.
UNITS = OF_EVENTS | {UTILIZATION: "share"}


def unit_of(metric: str) -> str:
    """The unit of a value of a pass."""
    return UNITS.get(metric, TOKENS)


def pass_value(run: ReportedRun, metric: str, step: int) -> float:
    """Value of a pass of the first repeat; NaN without a value.

    `tokens_written` and `k_reads` are of one layer, and reads of one KV head: of the first that
    were traced. UTILIZATION is the share of the KV cache's blocks in use. Else `metric` is a column
    of `steps`.
    """
    repeat = run.repeats[0]
    steps = run.steps(repeat)
    if metric not in OF_EVENTS:
        values = _column(steps, metric)[steps["step"] == step]
        return float(values.iloc[0]) if len(values) else math.nan
    if (trace := trace_to_draw(run)) is None:
        return math.nan
    events = traced.read_events(trace.path, repeat, [step], [0])
    if not len(events):
        return math.nan
    return float(_tokens_written(events) if metric == "tokens_written" else _k_reads(events))


def _column(steps: pd.DataFrame, metric: str) -> pd.Series:
    if metric == UTILIZATION:
        return steps["kv_blocks_used"] / steps["kv_blocks_total"]
    return steps[metric]


def _tokens_written(events: traced.Events) -> int:
    return int(events.tokens[events.kind == kv_events.K_WRITE].sum())


def _k_reads(events: traced.Events) -> int:
    reads = events.kind == kv_events.K_READ
    return int((events.kv_head[reads] == events.kv_head[reads].min()).sum()) if reads.any() else 0
