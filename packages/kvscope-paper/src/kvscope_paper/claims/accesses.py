"""Claims on the trace of accesses to the cache: its buffers, and Figure 6."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from kvscope.api.sections import ReportedRun
from kvscope.api.wording import wording
from kvscope.api.words import time_sources
from kvscope_kernels import kv_events
from kvscope_kernels.analyse import events as traced
from kvscope_kernels.analyse.access import trace_to_draw
from kvscope_paper.arrays import Bools
from kvscope_paper.claims.judging import (
    FAILS,
    HOLDS,
    LITTLE,
    MODELED_ACCESSES,
    UNKNOWN,
    Finding,
    by_count,
    span,
    within,
)
from kvscope_paper.claims.values import Values

DECODE_MS = 25
KIB = 1024
COLUMNS = ("step", "request", "kv_head", "kind", "block", "block_position", "start_ns", "end_ns")

OfTrace = Callable[[ReportedRun, traced.Events], Finding | None]


def _of_trace(judge: OfTrace) -> Callable[[Values, str], Finding | None]:
    """Decided by the events of layer 0 of the first traced run of a figure."""

    def judged(values: Values, figure: str) -> Finding | None:
        for run in values.runs(figure):
            if trace := trace_to_draw(run):
                events = traced.read_events(trace.path, run.repeats[0], layers=[0])
                return judge(run, events) if len(events) else None
        return None

    return judged


def _measured(judge: OfTrace) -> OfTrace:
    """Decided by single accesses, their order or times, which a model sets and does not measure."""

    def judged(run: ReportedRun, events: traced.Events) -> Finding | None:
        return MODELED_ACCESSES if run.time_source == time_sources.MODELED else judge(run, events)

    return judged


def _frame(events: traced.Events, rows: Bools) -> pd.DataFrame:
    return pd.DataFrame({name: getattr(events, name)[rows] for name in COLUMNS})


@_of_trace
@_measured
def all_recorded(run: ReportedRun, events: traced.Events) -> Finding | None:
    """Every pass reads V as often as K, of every block; a lost event would be missing in one."""
    reads = _frame(events, events.reads)
    counts = reads.groupby(["step", "request", "kv_head", "block", "kind"]).size().unstack("kind")
    counts = counts.reindex(columns=[kv_events.K_READ, kv_events.V_READ], fill_value=0)
    right = counts[kv_events.K_READ] == counts[kv_events.V_READ]
    return Finding(
        HOLDS if right.all() else FAILS,
        f"K and V are read equally often in {int(right.sum()):,} of {len(right):,} cases of a "
        "pass, request, head and block.",
    )


def mostly_prefill(values: Values) -> Finding | None:
    tokens = {int(comparison.point.x): comparison.as_timed for comparison in values.of("6a")}
    if 0 not in tokens or len(tokens) < 2:
        return None
    share = tokens[0] / sum(tokens.values())
    return Finding(
        HOLDS if share > 1 / 2 else FAILS,
        f"The prefill writes {wording.percent(share)} of the tokens written in {len(tokens)} "
        "passes.",
    )


@_of_trace
@_measured
def writes_together(run: ReportedRun, events: traced.Events) -> Finding | None:
    writes = _frame(events, (events.kind == kv_events.K_WRITE) & (events.step == events.step.min()))
    apart_ns = int(writes["start_ns"].max() - writes["start_ns"].min())
    one_ns = float((writes["end_ns"] - writes["start_ns"]).median())
    return Finding(
        HOLDS if apart_ns <= one_ns else FAILS,
        f"The writes of the prefill begin within {apart_ns / 1e3:,.1f} µs; one takes "
        f"{one_ns / 1e3:,.1f} µs.",
    )


@_of_trace
def mostly_idle(run: ReportedRun, events: traced.Events) -> Finding | None:
    passes_ = _frame(events, np.ones(len(events), bool)).groupby("step")
    busy_s = (passes_["end_ns"].max() - passes_["start_ns"].min()) / 1e9
    passes_s = run.steps(run.repeats[0]).set_index("step")["duration_s"]
    shares = (busy_s / passes_s).dropna()
    if shares.empty:
        return None
    return by_count(
        list(shares < 1 / 2), f"Accesses to a layer's cache span {span(list(shares))} of a pass."
    )


@_of_trace
@_measured
def no_reads_in_prefill(run: ReportedRun, events: traced.Events) -> Finding | None:
    reads = int((events.reads & (events.step == events.step.min())).sum())
    if not reads:
        return Finding(HOLDS, "It has no reads.")
    return Finding(
        FAILS,
        f"It has {reads:,} reads of a layer: the kernel of kvscope whose accesses these are reads "
        "there what it has just written.",
    )


@_of_trace
@_measured
def rising_blocks(run: ReportedRun, events: traced.Events) -> Finding | None:
    """Order of K reads of a request and head in each decode pass, by their start.

    The claim has two parts: ids rise, and the order never goes back.
    """
    decode = (events.kind == kv_events.K_READ) & (events.step > events.step.min())
    order = ["start_ns", "block_position"]
    reads = _frame(events, decode).sort_values(order).groupby(["step", "request", "kv_head"])
    several = [of_request for _, of_request in reads if len(of_request) > 1]
    if not several:
        return None
    by_id = [bool(of_request["block"].is_monotonic_increasing) for of_request in several]
    by_position = [
        bool(of_request["block_position"].is_monotonic_increasing) for of_request in several
    ]
    return by_count(
        [all(by_id), all(by_position)],
        f"In {sum(by_id):,} of {len(by_id):,} cases of a pass, request and head the ids of blocks "
        f"rise; in {sum(by_position):,} no place of the request is read again later.",
    )


@_of_trace
@_measured
def k_before_v(run: ReportedRun, events: traced.Events) -> Finding | None:
    decode = events.reads & (events.step > events.step.min())
    first_ns = (
        _frame(events, decode).groupby(["step", "request", "kv_head", "kind"])["start_ns"].min()
    )
    starts = first_ns.unstack("kind")
    if not {kv_events.K_READ, kv_events.V_READ} <= set(starts.columns):
        return None
    return by_count(
        list(starts[kv_events.K_READ] < starts[kv_events.V_READ]),
        "K is read before V in {} cases of a pass, request and head.",
    )


@_of_trace
@_measured
def requests_together(run: ReportedRun, events: traced.Events) -> Finding | None:
    decode = events.reads & (events.step > events.step.min())
    of_request = _frame(events, decode).groupby(["step", "request"])
    spans = pd.DataFrame({"start": of_request["start_ns"].min(), "end": of_request["end_ns"].max()})
    passes = spans.groupby("step")
    together = passes["start"].max() < passes["end"].min()
    return by_count(list(together), "In {} passes, reads of all requests overlap.")


@_of_trace
@_measured
def reads_apart(run: ReportedRun, events: traced.Events) -> Finding | None:
    """Finding on whether reads of K of a request begin further apart than its prefill writes."""
    first = events.step == events.step.min()
    writes = _spread_ns(_frame(events, (events.kind == kv_events.K_WRITE) & first))
    reads = _spread_ns(_frame(events, (events.kind == kv_events.K_READ) & ~first))
    if not (len(writes) and len(reads)):
        return None
    written, read = float(writes.median()), float(reads.median())
    return Finding(
        HOLDS if read > written else FAILS,
        f"Reads of a request and head begin within {read / 1e3:,.1f} µs of each other, its writes "
        f"in the prefill within {written / 1e3:,.1f} µs (medians).",
    )


def _spread_ns(accesses: pd.DataFrame) -> "pd.Series[float]":
    """Time between the first and last start of accesses of a pass, request and head."""
    starts = accesses.groupby(["step", "request", "kv_head"])["start_ns"]
    return starts.max() - starts.min()


def block_bytes(values: Values, figure: str) -> Finding | None:
    """Finding on K or V of a layer's block of 128 KB, and a block of all layers of 8 MB."""
    runs = values.runs(figure)
    if not runs:
        return None
    size = int(runs[0].record.engine.block_bytes or 0)
    layers = int(runs[0].settings["model"]["layers"])
    piece = size / (2 * layers)
    return by_count(
        [piece == 128 * KIB, size == 8 * KIB * KIB],
        f"K or V of a layer's block has {piece / KIB:,.0f} KiB, a block of all layers "
        f"{size / KIB / KIB:,.0f} MiB.",
    )


def decode_pass(values: Values) -> Finding | None:
    runs = values.runs("6b")
    if not runs:
        return None
    steps = runs[0].steps(0)
    decode_ms = 1e3 * float(steps.loc[steps["phase"] == "decode", "duration_s"].median())
    takes = f"A decode pass of four requests takes {decode_ms:.1f} ms"
    if runs[0].time_source == time_sources.MODELED:
        return Finding(UNKNOWN, f"{takes} by the model, in which recording accesses takes no time.")
    return Finding(HOLDS if within(decode_ms / DECODE_MS - 1, LITTLE) else FAILS, f"{takes}.")
