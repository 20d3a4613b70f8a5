"""Oracles of rows and values: unique keys, known requests and passes, finite values."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from kvscope import tables
from kvscope.analyse.oracles.run_tables import (
    OF_PASS,
    OF_REQUEST,
    RunTables,
    bad_rows,
    combine,
)
from kvscope.arraytypes import Bools
from kvscope.copies import clock_of
from kvscope.oracle import Violations
from kvscope.runfile import RECORDED
from kvscope.runschema import TRANSFERS

KEYS = {
    "workload": ["request_id"],
    "requests": OF_REQUEST,
    "steps": OF_PASS,
    "batch": [*OF_REQUEST, "step"],
    "preemptions": [*OF_REQUEST, "step", "event"],
    "transfers": [*OF_REQUEST, "step", "direction", "kind", "job"],
    "hits": [*OF_REQUEST, "step", "block_position"],
    "evictions": [*OF_PASS, "block"],
    "kv_groups": ["kv_group"],
    "layers": [*OF_PASS, "layer"],
}
# Columns that may be null.
NULLABLE = {
    "workload": {
        "arrival_s",  # null of a request that follows others, or comes before a pass
        *("conversation", "turn", "after", "think_s", "output_token_ids"),
        *("arrival_pass", "abort_pass"),
    },
    # Of earlier versions and imports, where nothing is saved, found or loaded.
    "batch": {
        *("saved_tokens", "hit_tokens", "own_hit_tokens", "loaded_tokens"),
        *("draft_tokens", "accepted_tokens"),  # of runs without speculative decoding
    },
    "steps": {"load_wait_s", "group_blocks_used", "kv_bytes_used", "context_bytes"},
    "kv_groups": {"window_tokens"},
    "requests": {
        *("first_scheduled_s", "first_token_s"),  # null if it was aborted earlier
        *("conversation", "turn", "chosen_sha256"),
    },
    "preemptions": {
        *("wait_s", "recomputed_tokens", "predicted_s", "cost_s"),
        *("scheduled_tokens", "shared_blocks", "hit_tokens", "own_hit_tokens"),
        *("group_blocks", "kv_bytes"),
    },
    "transfers": {
        *("request_id", "rebuild_s", "job", "ordered_s", "first_block", "loaded_blocks"),
        *("awaited_step", "arrived_step"),
    },
}
OF_RESUMPTIONS = ["wait_s", "recomputed_tokens", "hit_tokens", "own_hit_tokens"]
"""Columns of `preemptions` that all resumptions of a run have, or none."""
OF_A_COPY = {"start_s", "end_s", "blocks"}
"""Columns of `transfers` that may be null in runs of before that table."""
NULLABLE_IN_IMPORTS = {
    *("schedule_s", "forward_s", "kv_tokens_used", "time_s"),
    *("bytes", "copy_s", "start_s", "end_s"),
}
"""Further columns that may be null in imported runs."""
NULLABLE_IN_RECORDINGS = {
    *("prompt_token_ids", "output_sha256"),
    *("first_scheduled_s", "first_token_s"),  # before the recording's window
}
"""Further columns that may be null in recordings of a server, which have no tokens."""


def row_repeated(run: RunTables) -> Violations:
    """No table has two rows with the same key."""
    return combine(
        *(
            _bad(name, frame, frame.duplicated(KEYS[name]), "duplicate row")
            for name, frame in _frames(run)
        )
    )


def value_missing(run: RunTables) -> Violations:
    """Every column that must not be null has a finite value in every row.

    A request arrives by itself, after others, or before a pass. What was found in the prefix cache
    or shared with other requests, and what a resumption cost, is known of all rows of a run or of
    none.
    """
    requests = run.records.workload
    nowhere = requests[["arrival_s", "after", "arrival_pass"]].isna().all(axis=1)
    return combine(
        *(_missing(run, name, frame) for name, frame in _frames(run)),
        _bad(
            "workload",
            requests,
            nowhere,
            "has no arrival_s, follows no request and comes before no pass",
        ),
        _missing_in_some("preemptions", run.victims, ["shared_blocks", "scheduled_tokens"]),
        _missing_in_some("preemptions", run.resumptions, OF_RESUMPTIONS),
        _missing_in_some("batch", run.batch, ["hit_tokens", "own_hit_tokens"]),
        _missing_in_some("batch", run.batch, ["draft_tokens", "accepted_tokens"]),
    )


def _missing_in_some(name: str, frame: pd.DataFrame, columns: list[str]) -> Violations:
    absent = frame[columns].isna() & frame[columns].notna().any()
    return _bad_cell(name, frame, absent, "has no value, as other rows have")


def _missing(run: RunTables, name: str, frame: pd.DataFrame) -> Violations:
    optional = NULLABLE.get(name, set()) | (NULLABLE_IN_IMPORTS if run.imported else set())
    optional |= NULLABLE_IN_RECORDINGS if RECORDED in run.facts else set()
    if name == tables.TRANSFERS.name and run.facts.get("schema", TRANSFERS) < TRANSFERS:
        optional |= OF_A_COPY
    if name == tables.TRANSFERS.name and RECORDED in run.facts:
        optional |= {"start_s", "end_s", "copy_s"}
    due = [column for column in tables.TABLES[name].names if column not in optional]
    absent = frame[due].isna() | frame[due].isin([np.inf, -np.inf])
    return _bad_cell(name, frame, absent, "has no finite value")


def value_negative(run: RunTables) -> Violations:
    """No time, duration, size or count is negative."""
    return combine(
        *(
            _bad_cell(name, frame, frame.select_dtypes("number") < 0, "is negative")
            for name, frame in _frames(run)
        )
    )


def time_source_differs(run: RunTables) -> Violations:
    """The `time_source` of every row is that of run.json, the `clock` of a copy its device's."""
    source = run.facts.get("time_source")
    of_run = f"time_source is not {source}" if source else "time_source is not in run.json"
    copies, clock = run.records.transfers, clock_of(run.facts)
    return combine(
        _bad("transfers", copies, copies["clock"] != clock, f"clock is not {clock}"),
        *(
            _bad(name, frame, frame["time_source"] != source, of_run)
            for name, frame in _frames(run)
            if "time_source" in frame
        ),
    )


def row_without_owner(run: RunTables) -> Violations:
    """Every row names a request of the workload and a recorded pass.

    The passes of a repeat are numbered from 0, and every repeat has every request of the workload.
    """
    passes = pd.MultiIndex.from_frame(run.steps[OF_PASS])
    known = set(run.records.workload["request_id"])
    found: list[Violations] = [_gap(run)]
    for name, frame in _frames(run):
        if "step" in frame and name != "steps":
            strange = ~pd.MultiIndex.from_frame(frame[OF_PASS]).isin(passes)
            found.append(_bad(name, frame, strange, "no such pass"))
        if "request_id" in frame:
            named = frame["request_id"].notna() | (name != tables.TRANSFERS.name)
            strange = (named & ~frame["request_id"].isin(known)).to_numpy()
            found.append(_bad(name, frame, strange, "not a request of the workload"))
    counts = run.records.requests.groupby("repeat").size().rename("requests").reset_index()
    few = counts["requests"] != len(known)
    found.append(bad_rows(counts, few, lambda row: f"{row['requests']} of {len(known)} requests"))
    return combine(*found)


def _bad(name: str, frame: pd.DataFrame, bad: Bools | pd.Series, why: str) -> Violations:
    return bad_rows(frame, bad, lambda _: f"{name}: {why}")


def _bad_cell(name: str, frame: pd.DataFrame, bad: pd.DataFrame, why: str) -> Violations:
    """The rows that have a bad cell; the first is described by its column."""
    rows = bad.any(axis=1).to_numpy()
    column = str(bad.columns[bad.to_numpy()[rows.argmax()].argmax()]) if rows.any() else ""
    return _bad(name, frame, rows, f"{column} {why}")


def _gap(run: RunTables) -> Violations:
    wrong = run.steps["step"] != run.steps.groupby("repeat").cumcount()
    return bad_rows(
        run.steps, wrong, lambda _: "the passes of the repeat are not numbered 0, 1, 2, …"
    )


def _frames(run: RunTables) -> Iterator[tuple[str, pd.DataFrame]]:
    for table in tables.HOST_TABLES:
        yield table.name, getattr(run.records, table.name)
