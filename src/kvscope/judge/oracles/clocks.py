"""Oracles of clocks: the time of a repeat by clocks that its passes were not timed with."""

from collections.abc import Iterator

import pandas as pd

from kvscope.judge.oracles.run_tables import NANOSECONDS, RunTables, bad_rows, combine
from kvscope.tables.oracle import NONE, Violations

RATE = 1e-3
"""Bound of the difference in rate of two clocks: the system adjusts its own by at most 0.05 %."""
TICK_S = 0.010
"""Bound of the resolution of CPU time."""
COPY_S = 20e-6
"""Bound of the CPU time of a copy's stopwatch, which earlier versions counted with the copy."""
PARTS = ("start_engine", "warm_up", "repeats", "total")
"""Keys of timings_s in every run."""
OTHERS = ("cpu_s", "thread_cpu_s", "apart_s", "copy_cpu_s")


def clocks_differ(run: RunTables) -> Violations:
    """A repeat takes as long by an unadjusted clock, and its CPU time fits its duration.

    No thread has more CPU time than the time that passed, and no process more than all cores. The
    clocks were read together, within `apart_s`.
    """
    repeats = repeats_of(run)
    unread = [name for name in OTHERS if name not in repeats or repeats[name].isna().any()]
    if unread:
        return Violations(len(unread), f"clock.repeats has no {unread[0]} of each repeat")
    took, apart = repeats["duration_s"], repeats["apart_s"]
    cores = run.record.hardware.cores or 1
    raw = repeats["raw_s"].astype(float) if "raw_s" in repeats else took
    off = (raw.fillna(took) - took).abs() > RATE * took + apart + NANOSECONDS
    most = (1 + RATE) * took + apart + TICK_S
    busy = (repeats["thread_cpu_s"] > most) | (repeats["cpu_s"] > cores * most)
    less = repeats["cpu_s"] < repeats["thread_cpu_s"] - apart - TICK_S
    words = "{duration_s:.6f} s, {raw:.6f} s by another clock"
    cpu = "{cpu_s:.6f} s of CPU time, {thread_cpu_s:.6f} s of one thread, in {duration_s:.6f} s"
    return combine(
        bad_rows(repeats.assign(raw=raw), off, lambda r: words.format(**r)),
        bad_rows(repeats, busy | less, lambda r: cpu.format(**r)),
    )


def copy_cpu_wrong(run: RunTables) -> Violations:
    """All copies, rebuilds and saves of a repeat take at least their CPU time.

    The thread that copies has CPU time only while the copy goes on. It may wait as well.
    """
    repeats = repeats_of(run)
    if "copy_cpu_s" not in repeats:
        return Violations(1, "clock.repeats has no copy_cpu_s")
    copies = run.records.copies
    of_rows = copies[["copy_s", "rebuild_s"]].astype(float)
    took = of_rows.sum(axis=1).groupby(copies["repeat"]).sum()
    count = of_rows.notna().sum(axis=1).groupby(copies["repeat"]).sum()
    sums = repeats.assign(
        took=repeats["repeat"].map(took).fillna(0.0), copies=repeats["repeat"].map(count).fillna(0)
    )
    short = sums["took"] < sums["copy_cpu_s"] - COPY_S * sums["copies"]
    words = "{took:.6f} s of copies, {copy_cpu_s:.6f} s of CPU time in them"
    return bad_rows(sums, short, lambda r: words.format(**r))


def repeats_of(run: RunTables) -> pd.DataFrame:
    """One row a repeat of run.json's `clock`, with the columns that it has."""
    return pd.DataFrame([entry.as_written() for entry in run.record.clock.repeats])


def timings_differ(run: RunTables) -> Violations:
    """The repeats begin after the warm-up, and fit the recorded times of the parts and of the run.

    The measured process timed the parts of the run, its campaign the whole.
    """
    wrong = list(_impossible(run))
    return Violations(len(wrong), wrong[0]) if wrong else NONE


def _impossible(run: RunTables) -> Iterator[str]:
    timings, repeats = run.record.timings_s, run.record.clock.repeats
    if run.has_other_clocks and (lacking := [part for part in PARTS if part not in timings]):
        yield f"timings_s has no {lacking[0]}"
    before_s = timings.get("start_engine", 0.0) + timings.get("warm_up", 0.0)
    begun_s = min(repeat.start_ns for repeat in repeats) * NANOSECONDS
    served_s = sum(repeat.duration_s for repeat in repeats)
    ended_s = max(r.start_ns * NANOSECONDS + r.duration_s for r in repeats)
    if begun_s < before_s:
        yield f"repeats begin after {begun_s:.6f} s, engine and warm-up took {before_s:.6f} s"
    for name, least_s in (
        ("repeats", served_s),
        ("total", ended_s),
        ("total", before_s + timings.get("repeats", 0.0)),
    ):
        if name in timings and timings[name] < least_s:
            yield f"timings_s.{name} is {timings[name]:.6f}, it has {least_s:.6f} s in it"
