"""Oracles of batches: a pass's totals, and the phase and tokens of each request in it."""

import math
from typing import Any

import numpy as np
import pandas as pd

from kvscope.analyse.oracles.run_tables import (
    OF_PASS,
    OF_REQUEST,
    RunTables,
    bad_rows,
    combine,
    counts_of,
)
from kvscope.evidence import WORKLOAD
from kvscope.oracle import Violations
from kvscope.passes import DECODE, MIXED, PREFILL, phase_of_tokens


def pass_differs_from_batch(run: RunTables) -> Violations:
    """The token counts, request counts and phase of a pass match the requests of its batch."""
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
        lambda r: f"{column} is {r[column]}, its batch gives {r[other]}",
    )


def phase_wrong(run: RunTables) -> Violations:
    """A request is in decode exactly where it computes its newest output token and nothing else.

    But for drafts of the tokens that follow it.
    """
    rows = run.batch
    known = rows["scheduled_tokens"] - counts_of(rows["draft_tokens"])
    one_token = (known == 1) & (rows["recomputed_tokens"] == 0)
    newest = one_token & (rows["sampled_before"] > 0)
    expected = pd.Series(np.where(newest, DECODE, PREFILL), rows.index)
    return bad_rows(rows, rows["phase"] != expected, lambda r: f"phase is '{r['phase']}'")


def recomputed_wrong(run: RunTables) -> Violations:
    """Tokens of a request count as recomputed exactly where an earlier pass computed them."""
    rows = run.batch
    highest = rows.groupby(OF_REQUEST)["end_tokens"].cummax()
    before = highest.groupby([rows[key] for key in OF_REQUEST]).shift(fill_value=0)
    again = np.minimum(before, rows["end_tokens"]) - rows["context_tokens"]
    rows = rows.assign(expected=again.clip(lower=0))
    return bad_rows(
        rows,
        rows["recomputed_tokens"] != rows["expected"],
        lambda r: f"{r['recomputed_tokens']} tokens recomputed, expected {r['expected']}",
    )


def sampled_wrong(run: RunTables) -> Violations:
    """A pass samples one token for a request whose tokens are all computed, and none otherwise.

    With speculative decoding it gives the drafts that were right, too. A request of a recorded
    server may end with fewer of them, or while a pass is under way, which then gives it none.
    """
    rows = run.batch.merge(
        run.records.requests[[*OF_REQUEST, "prompt_tokens"]], on=OF_REQUEST, how="left"
    )
    known = rows["scheduled_tokens"] - counts_of(rows["draft_tokens"])
    length = rows["prompt_tokens"] + rows["sampled_before"]
    due = (rows["context_tokens"] + known == length) * (1 + counts_of(rows["accepted_tokens"]))
    if WORKLOAD not in run.evidence:  # a server's request may end before it has all its tokens
        last = rows.groupby(OF_REQUEST)["step"].transform("max") == rows["step"]
        due = due.where(~last, due.clip(upper=rows["sampled_tokens"]))
    return bad_rows(
        rows,
        rows["sampled_tokens"] != due,
        lambda r: f"{r['sampled_tokens']} tokens sampled with {r['end_tokens']} tokens computed",
    )


def drafts_wrong(run: RunTables) -> Violations:
    """Drafts are computed behind the newest token of a request that decodes; some are right."""
    rows = run.batch[counts_of(run.batch["draft_tokens"]) > 0]
    misplaced = (rows["phase"] != DECODE) | (rows["draft_tokens"] >= rows["scheduled_tokens"])
    most = run.most_drafts
    return combine(
        bad_rows(rows, misplaced, lambda _: "drafts of a request that does not decode"),
        bad_rows(
            rows,
            (rows["accepted_tokens"] > rows["draft_tokens"]) | (rows["draft_tokens"] > most),
            lambda r: f"{r['accepted_tokens']} of {r['draft_tokens']} drafts right, {most} at most",
        ),
    )


def batching_wrong(run: RunTables) -> Violations:
    """Passes are filled as the batching policy says.

    With `mixed` and `prefill_first` a prompt is computed whole, and with the latter no pass does
    both prefill and decode. Other policies compute a part of a prompt only where the rest exceeds
    what the pass may compute. What was scheduled of a ranked victim before it was preempted counts.
    """
    name, steps, most = run.section("batching").get("name"), run.steps, most_tokens(run)
    cut = run.batch["sampled_tokens"] == 0
    parts = run.batch[cut].merge(
        steps[[*OF_PASS, "scheduled_tokens"]], on=OF_PASS, suffixes=("", "_of_pass")
    )
    given_back = (
        run.records.preemptions.groupby(OF_PASS)["scheduled_tokens"].sum().rename("given_back")
    )
    parts = parts.join(given_back, on=OF_PASS).fillna({"given_back": 0})
    filled = parts["scheduled_tokens_of_pass"] + parts["given_back"]
    both = (steps["phase"] == MIXED) & (name == "prefill_first")
    return combine(
        bad_rows(
            run.batch,
            cut & (name in ("mixed", "prefill_first")),
            lambda _: f"a part of its tokens is computed, with {name}",
        ),
        bad_rows(
            parts,
            (filled < most) & (most < math.inf),
            lambda r: (
                f"a part of its tokens is computed in a pass of {r['scheduled_tokens_of_pass']}; "
                f"the limit is {most}"
            ),
        ),
        bad_rows(steps, both, lambda _: f"a pass does prefill and decode, with {name}"),
    )


def most_tokens(run: RunTables) -> float:
    """How many tokens a pass may compute by the settings; infinite if they do not say."""
    return least(
        run.section("engine").get("max_num_batched_tokens"),
        run.section("batching").get("chunk_tokens"),
    )


def least(*limits: Any) -> float:
    """The least of the limits that are given; infinite if none is."""
    return min((one for one in limits if isinstance(one, int)), default=math.inf)


def waiting_wrong(run: RunTables) -> Violations:
    """The waiting requests are those that have arrived, hold no cache, and have not finished.

    Those whose blocks are being loaded hold some.

    Requests are submitted between two passes, so requests that arrive between the end of the
    previous pass and the start of this one may or may not be counted.
    """
    gone = run.sum_over_passes(run.stays, 1) + run.count_ended
    gone += run.sum_over_passes(run.loading, 1)
    low, high = (run.count_arrived(column) - gone for column in ("before_s", "start_s"))
    found = run.steps.assign(low=low, high=high)
    waiting = found["waiting_requests"]
    return bad_rows(
        found,
        (waiting < low) | (waiting > high),
        lambda r: f"{r['waiting_requests']} waiting, expected {r['low']} to {r['high']}",
    )
