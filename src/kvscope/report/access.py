"""The KV accesses of a page: every event of some passes and layers, as compact columns."""

from typing import Any

import numpy as np
import pandas as pd

from kvscope.analyse.access import Trace
from kvscope.analyse.events import Events, phases_of, read_events, traced_parts
from kvscope.report.data import Run
from kvscope.report.figures.access_pattern import clock_note

# More make a page slow; what is left out is said on it.
MOST_EVENTS_A_PAGE = 200_000
MOST_EXPERIMENTS = 6
FEWEST_PASSES = 5  # rather some of the layers than fewer passes

COLUMNS = ("request", "kind", "kv_head", "block", "block_position", "offset_tokens", "tokens")


def accesses(runs: list[Run]) -> dict[str, dict[str, Any]]:
    """The accesses of the first traced experiments, by id, in equal parts of the page's room."""
    kept = runs[:MOST_EXPERIMENTS]
    made, left = {}, MOST_EVENTS_A_PAGE
    for number, run in enumerate(kept):
        made[run.id] = of_run(run, left // (len(kept) - number))
        left -= sum(len(part["kind"]) for part in made[run.id]["parts"])
    return made


def of_run(run: Run, most_events: int) -> dict[str, Any]:
    """Everything the page draws of one experiment: a part for each pass and layer.

    A part has `start_ns` since the first access of all, and columns of its events by start: those
    of COLUMNS, `after_ns` (since the start of the event before), `duration_ns` and `worker`.
    """
    assert run.trace
    trace = run.trace.of_repeat(run.repeats[0])
    parts = traced_parts(trace.path, trace.repeat)
    passes, layers = within(parts, most_events)
    events = _read(trace, passes, layers, most_events)
    origin = int(events.start_ns[0])
    phases = phases_of(parts)
    return {
        "repeat": trace.repeat,
        "requests": list(events.requests),
        "heads": sorted({int(head) for head in np.unique(events.kv_head)} - {-1}),
        "passes": [{"step": step, "phase": phases[step]} for step in passes],
        "layers": layers,
        "parts": [
            _part(part, origin) for step in passes for part in _by_layer(events, step, layers)
        ],
        "clock": clock_note(run),
        "passes_traced": int(parts["step"].nunique()),
        "layers_traced": int(parts["layer"].nunique()),
        "cut": len(events) == most_events,
    }


def within(parts: pd.DataFrame, most_events: int) -> tuple[list[int], list[int]]:
    """The passes and layers to show: whole passes from the first on, at least one.

    All layers if FEWEST_PASSES fit so; otherwise the first and the last, or the first alone.
    """
    layers = sorted(int(layer) for layer in parts["layer"].unique())
    for some in (layers, [layers[0], layers[-1]], layers[:1]):
        chosen = list(dict.fromkeys(some))
        sizes = parts[parts["layer"].isin(chosen)].groupby("step")["events"].sum().cumsum()
        fitting = [int(step) for step in sizes.index[sizes <= most_events]]
        if len(fitting) >= min(FEWEST_PASSES, len(sizes)):
            break
    return fitting or [int(sizes.index[0])], chosen


def _read(trace: Trace, passes: list[int], layers: list[int], most_events: int) -> Events:
    """The events of these passes and layers by start; only the first, if they are too many."""
    events = read_events(trace.path, trace.repeat, passes, layers)
    return events.take(np.argsort(events.start_ns, kind="stable")[:most_events])


def _by_layer(events: Events, step: int, layers: list[int]) -> list[Events]:
    found = [events.take((events.step == step) & (events.layer == layer)) for layer in layers]
    return [part for part in found if len(part)]


def _part(events: Events, origin: int) -> dict[str, Any]:
    """The events of one pass and layer."""
    start = events.start_ns
    return {
        "step": int(events.step[0]),
        "layer": int(events.layer[0]),
        "start_ns": int(start[0]) - origin,
        **{name: getattr(events, name).tolist() for name in COLUMNS},
        "after_ns": np.diff(start, prepend=start[0]).tolist(),
        "duration_ns": (events.end_ns - start).tolist(),
        "worker": events.worker.tolist(),
    }
