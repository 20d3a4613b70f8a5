"""Oracles of what a pass computes: the sums over its batch, and each request's place in it."""

import numpy as np
import pandas as pd

from kvscope.analyse.oracles.run_tables import (
    OF_PASS,
    OF_REQUEST,
    RunTables,
    bad_rows,
    combine,
)
from kvscope.oracle import Violations
from kvscope.passes import DECODE, PREFILL, phase_of_tokens


def pass_differs_from_batch(run: RunTables) -> Violations:
    """A pass's counts and phase are those of the requests in its batch."""
    found = _sums(run)
    steps = run.steps.join(found.add_suffix("_found"), on=OF_PASS)
    return combine(*(_differs(steps, str(column)) for column in found))


def _sums(run: RunTables) -> pd.DataFrame:
    rows = run.batch
    decodes = rows["phase"] == DECODE
    parts = pd.DataFrame(
        {
            "scheduled_tokens": rows["scheduled_tokens"],
            "prefill_tokens": rows["scheduled_tokens"].where(~decodes, 0),
            "decode_tokens": rows["scheduled_tokens"].where(decodes, 0),
            "recomputed_tokens": rows["recomputed_tokens"],
            "sampled_tokens": rows["sampled_tokens"],
            "requests": 1,
            "resumed_requests": rows["resumed"].astype(int),
        }
    )
    sums = parts.groupby([rows["repeat"], rows["step"]]).sum()
    tokens = zip(sums["prefill_tokens"], sums["decode_tokens"], strict=True)
    return sums.assign(phase=[phase_of_tokens(*of_pass) for of_pass in tokens])


def _differs(steps: pd.DataFrame, column: str) -> Violations:
    other = f"{column}_found"
    return bad_rows(
        steps,
        steps[column] != steps[other],
        lambda r: f"{column} is {r[column]}, of its batch {r[other]}",
    )


def phase_wrong(run: RunTables) -> Violations:
    """A request decodes where it computes its newest token and nothing else."""
    rows = run.batch
    given = rows.groupby(OF_REQUEST)["sampled_tokens"].cumsum() - rows["sampled_tokens"]
    newest = (rows["scheduled_tokens"] == 1) & (rows["recomputed_tokens"] == 0) & (given > 0)
    expected = pd.Series(np.where(newest, DECODE, PREFILL), rows.index)
    return bad_rows(rows, rows["phase"] != expected, lambda r: f"phase is '{r['phase']}'")


def recomputed_wrong(run: RunTables) -> Violations:
    """What a request computes below its highest token so far is recomputed, the rest is not."""
    rows = run.batch
    highest = rows.groupby(OF_REQUEST)["end_tokens"].cummax()
    before = highest.groupby([rows[key] for key in OF_REQUEST]).shift(fill_value=0)
    again = np.minimum(before, rows["end_tokens"]) - rows["context_tokens"]
    rows = rows.assign(expected=again.clip(lower=0))
    return bad_rows(
        rows,
        rows["recomputed_tokens"] != rows["expected"],
        lambda r: f"{r['recomputed_tokens']} tokens recomputed, {r['expected']} were lost",
    )


def sampled_wrong(run: RunTables) -> Violations:
    """A pass gives a request one token where it computes all that the request has, else none."""
    rows = run.batch.merge(run.requests[[*OF_REQUEST, "prompt_tokens"]], on=OF_REQUEST, how="left")
    given = rows.groupby(OF_REQUEST)["sampled_tokens"].cumsum() - rows["sampled_tokens"]
    complete = rows["end_tokens"] == rows["prompt_tokens"] + given
    return bad_rows(
        rows,
        rows["sampled_tokens"] != complete.astype(int),
        lambda r: f"{r['sampled_tokens']} tokens given after {r['end_tokens']} were computed",
    )


def waiting_wrong(run: RunTables) -> Violations:
    """Those wait that have arrived, are not in the cache, and have not ended.

    A request is handed over between two passes once its arrival is past: of those that arrive in
    between, any number may be.
    """
    gone = run.sum_over_passes(run.stays, 1) + run.count_ended
    low, high = (run.count_arrived(column) - gone for column in ("before_s", "start_s"))
    found = run.steps.assign(low=low, high=high)
    waiting = found["waiting_requests"]
    return bad_rows(
        found,
        (waiting < low) | (waiting > high),
        lambda r: f"{r['waiting_requests']} wait, {r['low']} to {r['high']} can",
    )
