"""May a run be believed? If not, why: reasons by name, each with the figures behind it."""

from pathlib import Path
from typing import Any

import pandas as pd

from kvscope import accounts, tables
from kvscope.accounts import COLLECTED
from kvscope.analyse.metrics import makespan_s, stall_time_s
from kvscope.analyse.reason import Reason
from kvscope.analyse.records import Records
from kvscope.analyse.statistics import coefficient_of_variation
from kvscope.runfile import COMPLETE, IMPORTED_FROM, TRACING

MINIMUM_REPEATS = 3
# Makespans that vary more than this (standard deviation over mean) are unstable.
MAXIMUM_VARIATION = 0.10
# A repeat that lost more than this share of its makespan in stalls is stalled.
MAXIMUM_STALL_SHARE = 0.05


def conservation(records: Records) -> list[Reason]:
    """Every token computed was needed, or lost and needed again; in every repeat.

    Of each request, Σ scheduled = highest (context + scheduled) + Σ recomputed tokens; and if it
    was not given up, highest = prompt + output - 1 (its last token is never computed) and it
    recomputed what its resumptions owed. The passes hold the tokens of their requests.
    """
    reasons = []
    for number, repeat in enumerate(records.repeats()):
        tokens = _tokens_by_request(repeat)
        compared = [
            ("scheduled", tokens["scheduled"], tokens["highest"] + tokens["recomputed"]),
            ("in its context", tokens["highest"], tokens["due"]),
            ("recomputed", tokens["recomputed"], tokens["owed"]),
        ]
        for what, found, expected in compared:
            for name in tokens.index[found != expected][:1]:
                detail = f"request {name}: {found[name]} tokens {what}, {expected[name]} expected"
                reasons.append(Reason("tokens_not_conserved", f"repeat {number}, {detail}"))
        for column in ("scheduled_tokens", "recomputed_tokens"):
            passes, rows = (int(frame[column].sum()) for frame in (repeat.steps, repeat.batch))
            if passes != rows:
                detail = f"{column} of the passes {passes}, of their requests {rows}"
                reasons.append(Reason("tokens_not_conserved", f"repeat {number}, {detail}"))
    return reasons


def _tokens_by_request(repeat: Records) -> pd.DataFrame:
    """Each request's tokens: scheduled, recomputed and highest found; due and owed expected.

    Of a request that was given up nothing is expected: it counts as due what was found.
    """
    rows = repeat.batch.assign(end=repeat.batch[["context_tokens", "scheduled_tokens"]].sum(axis=1))
    found = rows.groupby("request_id").agg(
        scheduled=("scheduled_tokens", "sum"),
        recomputed=("recomputed_tokens", "sum"),
        highest=("end", "max"),
    )
    served = repeat.served.set_index("request_id")
    expected = pd.DataFrame(
        {
            "due": served["prompt_tokens"] + served["output_tokens"] - 1,
            "owed": repeat.preemptions.groupby("request_id")["recomputed_tokens"].sum(),
        }
    )
    everyone = {*repeat.requests["request_id"], *found.index}
    tokens = found.reindex(sorted(everyone)).join(expected).fillna(0).astype(int)
    given_up = tokens.index.isin(repeat.given_up["request_id"])
    tokens.loc[given_up, "due"] = tokens["highest"]
    tokens.loc[given_up, "owed"] = tokens["recomputed"]
    return tokens


def missing_tokens(records: Records) -> list[Reason]:
    """Every repeat gave every request the output tokens asked for, unless it was given up."""
    asked = records.workload.set_index("request_id")["output_tokens"]
    reasons = []
    for number, repeat in enumerate(records.repeats()):
        given = repeat.served.set_index("request_id")["output_tokens"]
        due = asked.drop(repeat.given_up["request_id"], errors="ignore")
        wrong = (given.reindex(due.index).fillna(0) != due).sum()
        if wrong:
            reasons.append(Reason("tokens_missing", f"repeat {number}: {wrong} requests"))
    return reasons


def differing_outputs(records: Records) -> list[Reason]:
    """Every repeat gave every request the same tokens, where it was not given up."""
    outputs = records.served.groupby("request_id")["output_sha256"]
    differing = int((outputs.nunique() > 1).sum())
    return [Reason("outputs_differ", f"{differing} requests")] if differing else []


def leaks(facts: dict[str, Any]) -> list[Reason]:
    """Every repeat gave all its blocks back, the device's and the host pool's."""
    reasons = []
    for leak in facts.get("engine", {}).get("leaked_blocks", []):
        kept = f"{leak['kv_blocks']} blocks of the KV cache, {leak['host_blocks']} of the host pool"
        reasons.append(Reason("blocks_leaked", f"repeat {leak['repeat']}: {kept}"))
    return reasons


def nothing_served(records: Records) -> list[Reason]:
    """Every repeat served somebody to the end."""
    empty = [n for n, repeat in enumerate(records.repeats()) if repeat.requests["aborted"].all()]
    return [Reason("nothing_served", f"repeats {empty}: all requests aborted")] if empty else []


def warm_up(facts: dict[str, Any]) -> list[Reason]:
    """Warm-up met every shape class that was measured."""
    found = facts.get("warmup", {})
    if not found.get("passes"):
        return [Reason("no_warm_up", "nothing ran before the measured part")]
    missed = found.get("uncovered_classes", [])
    return [Reason("warm_up_incomplete", f"classes {', '.join(missed)}")] if missed else []


def repeats(records: Records) -> list[Reason]:
    """Enough repeats, and alike."""
    makespans = [makespan_s(repeat) for repeat in records.repeats()]
    reasons = []
    if len(makespans) < MINIMUM_REPEATS:
        detail = f"{len(makespans)}, at least {MINIMUM_REPEATS} are needed"
        reasons.append(Reason("too_few_repeats", detail))
    variation = coefficient_of_variation(makespans)
    if variation > MAXIMUM_VARIATION:
        detail = f"makespan varies by {variation:.0%}, at most {MAXIMUM_VARIATION:.0%}"
        reasons.append(Reason("unstable", detail))
    return reasons


def stalls(records: Records) -> list[Reason]:
    """No repeat lost much of its time in stalls."""
    reasons = []
    for number, repeat in enumerate(records.repeats()):
        share = stall_time_s(repeat) / makespan_s(repeat)
        if share > MAXIMUM_STALL_SHARE:
            detail = f"repeat {number}: {share:.0%} of the makespan"
            reasons.append(Reason("stalled", detail))
    return reasons


def lost_trace(facts: dict[str, Any]) -> list[Reason]:
    """A profiler that was used brought its trace home."""
    profiler = facts.get("profiler", {})
    if profiler.get("used") == "nsys" and profiler.get("reason"):
        return [Reason("profiler_lost_events", profiler["reason"])]
    return []


def violated_oracles(facts: dict[str, Any], run: Path, collected: Path) -> list[Reason]:
    """Every oracle of the KV events holds, of a run that was traced.

    The verdict is in collect.json, in the directory `collected`. Raises BadInput if it is not
    there, or was made from another measurement.
    """
    if TRACING not in facts or facts["status"] != COMPLETE:
        return []
    account = accounts.read(collected, COLLECTED, run)
    accounts.require_unchanged(collected, account, f"{tables.KV_EVENTS.name}.parquet")
    return [
        Reason(name, f"{found['violations']} ({found['first']})")
        for name, found in account["kv_events"]["oracles"].items()
        if found["violations"]
    ]


def reasons_against(facts: dict[str, Any], records: Records) -> list[Reason]:
    """Everything that speaks against a run; empty if it is valid.

    An imported run is judged by what it holds, its passes: it has neither requests nor warm-up. Its
    KV events, as those of any run, are judged by `violated_oracles`.
    """
    if facts["status"] != COMPLETE:
        return [Reason("failed", facts.get("reason") or "unknown")]
    if IMPORTED_FROM in facts and not len(records.steps):
        return []  # a trace of kernels alone
    passes = [*repeats(records), *stalls(records)]
    if IMPORTED_FROM in facts:
        return passes
    return [
        *conservation(records),
        *missing_tokens(records),
        *nothing_served(records),
        *differing_outputs(records),
        *leaks(facts),
        *warm_up(facts),
        *passes,
        *lost_trace(facts),
    ]
