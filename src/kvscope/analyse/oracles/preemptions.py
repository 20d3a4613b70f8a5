"""Oracles of preemptions and resumptions: complete, in the right pass, with the right tokens."""

import math
from functools import cache

import numpy as np
import pandas as pd

from kvscope.actions import ACTIVATION, RECOMPUTE, SWAP, copies_blocks, keeps_tokens
from kvscope.analyse.oracles.held import contexts, held_before, held_blocks, kept_blocks
from kvscope.analyse.oracles.run_tables import (
    OF_PASS,
    OF_REQUEST,
    TOLERANCE_S,
    RunTables,
    bad_rows,
    blocks_of,
    combine,
    last_until,
)
from kvscope.analyse.oracles.victims import is_ranked, policy_of
from kvscope.analyse.planned import experiment_of
from kvscope.copies import IN, OUT
from kvscope.oracle import Violations
from kvscope.plan.policy import Overflow
from kvscope.setting_values import VLLM_0_4_2

COMMON = ("policy", "refused", "tokens", "predicted_s")
"""Columns with the same value at a preemption and at its resumption."""
PREDICTED = ["tokens", "policy", "refused", "predicted_s"]
"""What a prediction is compared by."""


def preemptions_differ(run: RunTables) -> Violations:
    """The recorded preemptions match the scheduler's counts, for each pass and each request."""
    return combine(
        _counts_differ(run, run.steps, OF_PASS, "preempted_requests"),
        _counts_differ(run, run.records.requests, OF_REQUEST, "preemptions"),
    )


def _counts_differ(run: RunTables, frame: pd.DataFrame, key: list[str], column: str) -> Violations:
    lost = run.victims
    found = frame.join(lost.groupby(key).size().rename("rows"), on=key).fillna({"rows": 0})
    return bad_rows(
        found,
        found[column] != found["rows"],
        lambda r: f"the scheduler counted {r[column]} preemptions, recorded are {r['rows']:.0f}",
    )


def context_wrong(run: RunTables) -> Violations:
    """A request's context is what its previous pass left.

    As it is admitted or resumed, it is what it finds in the prefix cache, and of what was kept of
    it on the host the blocks that follow, or what vLLM's offloading has loaded of them.
    """
    rows = _with_preemption(run)
    there = rows["hit_tokens"] + rows["loadable"] + rows["loaded_tokens"]
    rows["expected"] = np.where(rows["admits"], there, rows["previous_tokens"])
    return bad_rows(
        rows,
        rows["context_tokens"] != rows["expected"],
        lambda r: f"{r['context_tokens']} tokens in its context, expected {r['expected']:.0f}",
    )


def resumed_wrong(run: RunTables) -> Violations:
    """A request counts as resumed from its preemption until its next sampled token."""
    rows = run.batch
    given = rows["step"].where(rows["sampled_tokens"] > 0)
    own = [rows[key] for key in OF_REQUEST]
    before = given.groupby(own).ffill().groupby(own).shift()
    expected = (rows["preempted_step"] >= 0) & ~(before >= rows["preempted_step"])
    return bad_rows(
        rows,
        rows["resumed"].astype(bool) != expected,
        lambda r: "counts as resumed" if r["resumed"] else "does not count as resumed",
    )


def resumption_wrong(run: RunTables) -> Violations:
    """Each preempted request that runs again has one resumption, which matches its preemption.

    The resumption is in the request's first pass after the preemption. Its wait, its recomputed
    tokens and its blocks follow from the two passes.
    """
    due = _with_preemption(run)
    due = due[due["resumes"]]
    found = due.merge(
        run.resumptions, on=[*OF_REQUEST, "step"], how="outer", suffixes=("", "_back")
    )
    lost = found["event_back"].isna() | found["event"].isna()
    differ = pd.Series(False, found.index)
    for column in COMMON:
        there, back = found[column], found[f"{column}_back"]
        differ |= (there != back) & (there.notna() | back.notna())
    wait = found["start_s"] - found["time_s"]
    differ |= (found["wait_s_back"] - wait).abs() > TOLERANCE_S
    differ |= (found["time_s_back"] - found["start_s"]).abs() > TOLERANCE_S
    again = (found["tokens"] - found["context_tokens"]).clip(lower=0)
    differ |= found["recomputed_tokens_back"] != again
    for column in ("hit_tokens", "own_hit_tokens"):
        differ |= found[f"{column}_back"].astype(float).fillna(0) != found[column]
    given = held_blocks(run, found["context_tokens"].fillna(0), found["end_tokens"].fillna(0))
    differ |= found["blocks_back"] != given
    return combine(
        bad_rows(found, lost, lambda _: "a resumption without preemption, or a missing resumption"),
        bad_rows(found, differ & ~lost, lambda _: "the resumption does not match its preemption"),
    )


def cost_wrong(run: RunTables) -> Violations:
    """A resumption costs its copies, its rebuilding, and its part of the passes that recompute it.

    What vLLM's offloading loads for it counts, what it stores does not.

    Of the forward time of a pass that computes its tokens again, it has a part by tokens.
    """
    rows = run.resumptions.reset_index(drop=True)
    lost = run.victims[[*OF_REQUEST, "step"]].rename(columns={"step": "at"})
    rows["at"] = last_until(rows, lost)
    moves = run.records.moves.rename(columns={"step": "at"})
    took_s = moves["copy_s"] + moves["rebuild_s"].astype(float).fillna(0)
    spent = took_s.groupby([moves[key] for key in (*OF_REQUEST, "at", "direction")]).sum()
    out_s = _looked_up(spent, rows.assign(direction=OUT))
    back_s = _looked_up(spent, rows.assign(at=rows["step"], direction=IN))
    again_s = rows.join(_recomputing_s(run), on=[*OF_REQUEST, "step"])["again_s"]
    rows["expected"] = out_s + back_s + again_s.astype(float).fillna(0) + _loaded_s(run, rows)
    return bad_rows(
        rows,
        ~((rows["cost_s"] - rows["expected"]).abs() <= TOLERANCE_S),
        lambda r: f"cost_s is {r['cost_s']}, expected {r['expected']:.6f}",
    )


def prediction_wrong(run: RunTables) -> Violations | None:
    """What a policy predicts for a victim is what the settings give for its tokens and the action.

    Of a refused victim, it is what they give for some action that was refused, so not for
    recomputing. They give it for some number of requests that run beside the victim or resume with
    it. Policies that predict nothing, or from more than the settings, are not checked.
    """
    if policy_of(run).predictions_s is Overflow.predictions_s:
        return None
    experiment, lost = experiment_of(run.records), run.victims[run.victims["tokens"] > 0]
    overflow, beside = experiment.overflow, range(experiment.engine.max_num_seqs)
    predicted = cache(lambda *of: overflow.predictions_s(experiment, *of))
    wrong = []
    for tokens, action, refused, found_s in lost[PREDICTED].itertuples(index=False, name=None):
        known = (predicted(tokens, others) for others in beside)
        due_s = (
            seconds
            for each in known
            for name, seconds in each.items()
            if (name != RECOMPUTE.name if refused else name == action)
        )
        wrong.append(not any(math.isclose(found_s, one_s) for one_s in due_s))
    return bad_rows(
        lost,
        np.array(wrong, bool),
        lambda r: f"predicted_s is {r['predicted_s']}, by the settings {predicted(r['tokens'], 0)}",
    )


def _loaded_s(run: RunTables, rows: pd.DataFrame) -> "pd.Series[float]":
    """Seconds of what was loaded for each resumption."""
    served = run.loaded.dropna(subset="served_step").astype({"served_step": np.int64})
    spent = served.groupby([*OF_REQUEST, "served_step"])["copy_s"].sum()
    keys = pd.MultiIndex.from_frame(rows[[*OF_REQUEST, "step"]])
    return spent.reindex(keys).fillna(0.0).set_axis(rows.index)


def _looked_up(spent: pd.Series, rows: pd.DataFrame) -> pd.Series:
    """The seconds of each row's copy; 0 without one."""
    keys = pd.MultiIndex.from_frame(rows[[*OF_REQUEST, "at", "direction"]])
    return spent.reindex(keys).fillna(0.0).set_axis(rows.index)


def _recomputing_s(run: RunTables) -> "pd.Series[float]":
    """`again_s`, indexed by request and step of a resumption: forward time of tokens recomputed."""
    rows = run.batch[run.batch["recomputed_tokens"] > 0]
    resumed = run.resumptions[[*OF_REQUEST, "step"]].rename(columns={"step": "at"})
    rows = rows.assign(resumed=last_until(rows, resumed))
    passes = run.steps.set_index(OF_PASS)
    token_s = (passes["forward_s"] / passes["scheduled_tokens"]).rename("token_s")
    rows["again_s"] = rows["recomputed_tokens"] * rows.join(token_s, on=OF_PASS)["token_s"]
    return rows.groupby([*OF_REQUEST, "resumed"])["again_s"].sum()


def preemption_misplaced(run: RunTables) -> Violations:
    """A preemption happens while its pass is scheduled, and frees the tokens and blocks held.

    Of these blocks, other requests still hold those that they have found, or that it has found.
    A victim that is preempted by rank may have got its blocks for the pass before: those for what
    the pass was to compute of it, up to its newest token.
    """
    found = run.victims.merge(
        run.steps[[*OF_PASS, "start_s", "schedule_s", "before_s"]], on=OF_PASS
    )
    early = found["time_s"] < found["before_s"] - TOLERANCE_S
    late = found["time_s"] > found["start_s"] + found["schedule_s"] + TOLERANCE_S
    held = held_before(run, found)
    given = found["scheduled_tokens"].astype(float).fillna(0)
    differ = found["tokens"] != held["end_tokens"]
    fewest, most = (held_blocks(run, of, held["slot_tokens"]) for of in contexts(held))
    differ |= ~found["blocks"].between(fewest, most)
    return combine(
        bad_rows(found, early | late, lambda _: "preempted outside the scheduling of its pass"),
        bad_rows(found.assign(had=held["end_tokens"]), differ, _had),
        bad_rows(found, _given_wrong(run, given, held), _given),
        _shared_differ(run),
    )


def _shared_differ(run: RunTables) -> Violations:
    lost = run.victims.assign(found=run.shared_blocks, held=list(map(len, run.sharing.left)))
    return combine(
        bad_rows(
            lost,
            lost["found"] != lost["held"],
            lambda r: f"{r['found']} of its blocks shared, others hold {r['held']}",
        ),
        bad_rows(
            run.resumptions,
            run.resumptions[["shared_blocks", "scheduled_tokens"]].notna().any(axis=1),
            lambda _: "a resumption has shared_blocks or scheduled_tokens",
        ),
        bad_rows(
            lost,
            lost["hit_tokens"].notna() | lost["own_hit_tokens"].notna(),
            lambda _: "a preemption has tokens found",
        ),
    )


def _given_wrong(run: RunTables, given: pd.Series, held: pd.DataFrame) -> pd.Series:
    """Where no pass would compute so many tokens of a victim: all that is due, or a chunk of it."""
    if not is_ranked(run):
        return given != 0
    due = held["length"] - held["end_tokens"]
    most = run.section("batching").get("chunk_tokens")
    if most is None:
        return (given != 0) & (given != due)
    return (given < 0) | (given > due.clip(upper=most))


def _had(row: object) -> str:
    found = pd.Series(row)
    freed = f"{found['tokens']} tokens in {found['blocks']} blocks freed"
    return f"{freed}, the request held {found['had']:.0f} tokens"


def _given(row: object) -> str:
    return f"{pd.Series(row)['scheduled_tokens']} tokens scheduled, and taken back"


def preempted_with_room(run: RunTables) -> Violations:
    """A request is preempted only where the free blocks do not suffice for the pass.

    The blocks in use and those that the pass's victims freed are then all blocks of the cache. The
    last victim may be the request that lacks room, which has none of the blocks that it asks for.
    What windows leave behind may have been freed after it was preempted.
    """
    kept_free = int(run.section("cache").get("admission") == VLLM_0_4_2)
    lost = run.victims.assign(asks=_asked_blocks(run))
    lost["blocks"] -= run.shared_blocks
    of_pass = lost.groupby(OF_PASS).agg(lost=("blocks", "sum"), asks=("asks", "max"))
    steps = run.steps.merge(of_pass, on=OF_PASS)
    held = steps["kv_blocks_used"] + steps["lost"] + _left_behind(run, steps)
    words = "preempted although {0} of {1} blocks were in use"
    return bad_rows(
        steps.assign(held=held),
        held + steps["asks"] + kept_free <= steps["kv_blocks_total"],
        lambda r: words.format(r["held"], r["kv_blocks_total"]),
    )


def _left_behind(run: RunTables, steps: pd.DataFrame) -> pd.Series:
    """The blocks that windows leave behind while each of these passes is scheduled, at most."""
    rows, lost = run.batch, held_before(run, run.victims)
    before = rows.groupby(OF_REQUEST)["context_tokens"].shift(fill_value=0)
    room, before = rows["slot_tokens"], before.where(~rows["admits"], 0)
    freed = held_blocks(run, before, room) - held_blocks(run, rows["context_tokens"], room)
    fewest, most = (held_blocks(run, of, lost["slot_tokens"]) for of in contexts(lost))
    both = [rows.assign(freed=freed), run.victims.assign(freed=most - fewest)]
    found = pd.concat([one[[*OF_PASS, "freed"]] for one in both]).groupby(OF_PASS)["freed"].sum()
    return steps.join(found, on=OF_PASS)["freed"].fillna(0)


def _asked_blocks(run: RunTables) -> "pd.Series[int]":
    """The blocks that each victim needs at most for its next pass, one value a victim."""
    held = held_before(run, run.victims)
    missing = (held["length"] - run.victims["tokens"]).fillna(1).clip(lower=1)
    groups = len(run.kv_groups) if run.groups_differ else 1
    return groups * blocks_of(missing, run.records.block_size)


def refused_wrong(run: RunTables) -> Violations:
    """A victim is refused only if the host pool lacks room, and only refused ones are recomputed.

    The host blocks in use are at most those after the previous pass plus those of earlier victims
    of the same pass. Where activations are kept, a victim is refused that has none.
    """
    lost = run.victims.assign(shared=run.shared_blocks)
    pool = run.steps[[*OF_PASS, "host_blocks_total"]].copy()
    pool["held"] = run.steps.groupby("repeat")["host_blocks_used"].shift(fill_value=0)
    lost = lost.merge(pool, on=OF_PASS, how="left").sort_values([*OF_PASS, "time_s"])
    need = kept_blocks(run, lost) - lost["shared"]
    kept = need.where(copies_blocks(lost["policy"]), 0)
    before = kept.groupby([lost[key] for key in OF_PASS]).cumsum() - kept
    room = lost["host_blocks_total"] - lost["held"] - before
    refused, full = lost["refused"].astype(bool), need > room
    if run.engine.activation_blocks_total:
        full = ~run.saved_before(lost)
    wrong = refused & (~full | (lost["host_blocks_total"] == 0))
    if run.section("overflow").get("name") in (SWAP.name, ACTIVATION.name):
        wrong |= (lost["policy"] == RECOMPUTE.name) & (lost["tokens"] > 0) & ~refused
    lost = lost.assign(need=need, room=room)
    words = "{0} blocks {1}, the host pool had room for {2}"
    return bad_rows(
        lost,
        wrong,
        lambda r: words.format(r["need"], "refused" if r["refused"] else "recomputed", r["room"]),
    )


def _with_preemption(run: RunTables) -> pd.DataFrame:
    """The rows of `batch`, joined to the preemption that they resume from.

    `loadable` are the tokens that its host copy has after those that it found.
    """
    rows = run.batch
    rows = rows.assign(resumes=rows["admits"] & (rows["preempted_step"] >= 0))
    lost = run.victims.rename(columns={"step": "preempted_step"})
    lost["left"] = pd.Series(run.sharing.left, lost.index, dtype=object)
    lost = lost.drop(columns=["recomputed_tokens", "hit_tokens", "own_hit_tokens"])
    rows = rows.merge(lost, on=[*OF_REQUEST, "preempted_step"], how="left")
    rows = rows.merge(run.steps[[*OF_PASS, "start_s"]], on=OF_PASS, how="left")
    rows["loadable"] = 0
    kept = rows["resumes"] & keeps_tokens(rows["policy"])
    size, copied = run.records.block_size, copies_blocks(rows["policy"])
    end = rows["tokens"].fillna(0).astype(np.int64)
    for at in np.flatnonzero(copied & kept & (rows["shared_blocks"] > 0)):
        first = rows["hit_tokens"][at] // size
        gaps = (position for position in rows["left"][at] if position >= first)
        end[at] = min(next(gaps, math.inf) * size, end[at])
    rows["loadable"] = (end - rows["hit_tokens"]).clip(lower=0).where(kept, 0)
    return rows
