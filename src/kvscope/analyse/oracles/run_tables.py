"""The host tables of a run with the columns that several oracles derive from them.

A *stay* is the time during which the tokens of one row of `batch` are in the cache: from its pass
until the request's next row, or until the request is preempted, finished or aborted.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from kvscope.actions import keeps_tokens
from kvscope.analyse.oracles.sharing import Sharing
from kvscope.analyse.records import Records
from kvscope.arraytypes import Bools, Ints
from kvscope.evidence import JOBS, PREFIXES
from kvscope.kv_plan import KvGroup, has_one_block_table
from kvscope.oracle import NONE, Violations
from kvscope.passes import PREFILL
from kvscope.runschema import OTHER_CLOCKS, EngineRecord, ServerRecord
from kvscope.setting_values import ALL_AT_ONCE, VLLM_0_4_2

OF_REQUEST = ["repeat", "request_id"]
OF_PASS = ["repeat", "step"]
AT = {"step": "at"}
NANOSECONDS = 1e-9
TOLERANCE_S = 1e-6
"""Tolerance of comparisons between times that were computed in two ways."""


class RunTables:
    """The tables of a complete run, all repeats together, with derived columns."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self.record = records.record
        self.evidence = records.evidence

    def section(self, name: str) -> Mapping[str, Any]:
        """A section of the experiment's settings; empty if the run has none."""
        found = self.records.settings.get(name)
        return found if isinstance(found, Mapping) else {}

    @property
    def server(self) -> ServerRecord | None:
        """The server that was recorded; None where an experiment's settings are known."""
        return self.record.recorded

    @property
    def most_drafts(self) -> int:
        """Tokens that speculative decoding guesses for one pass, at most; 0 without it."""
        return self.server.draft_tokens if self.server else 0

    @property
    def by_clock(self) -> bool:
        """Whether times come from a real clock, whose readings never repeat and take time."""
        return self.records.by_clock

    @property
    def has_other_clocks(self) -> bool:
        """Whether run.json is of a version that has other clocks and copies of the warm-up."""
        new = self.record.schema_version >= OTHER_CLOCKS
        return new or any(repeat.apart_s is not None for repeat in self.record.clock.repeats)

    @property
    def repeats_warm_up(self) -> bool:
        """Whether repeats have the same passes as the warm-up: requests that all come at once."""
        if self.records.has_followers:
            return False
        workload = self.section("workload")
        at_once = workload.get("arrival") == ALL_AT_ONCE and workload.get("timeout_s") is None
        return self.has_other_clocks and at_once and not self.records.copies_in_real_time

    @property
    def engine(self) -> EngineRecord:
        """The `engine` section of run.json."""
        return self.record.engine

    @cached_property
    def steps(self) -> pd.DataFrame:
        """The passes in order, with `end_s` and `before_s`, the end of the previous pass."""
        steps = self.records.steps.sort_values(OF_PASS, ignore_index=True)
        steps["end_s"] = steps["start_s"] + steps["duration_s"]
        steps["before_s"] = steps.groupby("repeat")["end_s"].shift(fill_value=0.0)
        return steps

    @property
    def victims(self) -> pd.DataFrame:
        """The rows of `preemptions` whose event is a preemption."""
        return self.records.preemptions[self.records.preemptions["event"] == "preempt"]

    @property
    def resumptions(self) -> pd.DataFrame:
        """The rows of `preemptions` whose event is a resumption."""
        return self.records.preemptions[self.records.preemptions["event"] == "resume"]

    @cached_property
    def stored(self) -> pd.DataFrame:
        """The rows of `transfers` of blocks that vLLM's offloading stored, in order."""
        return self.records.stored.sort_values(["repeat", "job"], ignore_index=True)

    @cached_property
    def loaded(self) -> pd.DataFrame:
        """The rows of `transfers` of blocks that vLLM's offloading loaded, in order.

        `served_step` is the pass that began with what was loaded; null if the request was aborted.
        """
        rows = self.records.loaded.sort_values(["repeat", "job"], ignore_index=True)
        begun = self.batch.loc[self.batch["loaded_tokens"] > 0, [*OF_REQUEST, "step"]]
        served = first_after(rows.assign(step=rows["step"] - 1), begun.rename(columns=AT))
        return rows.assign(served_step=served)

    @property
    def offloads(self) -> bool:
        """Whether vLLM's offloading stored or loaded blocks, and when that ended is known."""
        return not self.records.jobs.empty and JOBS in self.evidence

    @cached_property
    def loading(self) -> pd.DataFrame:
        """One row a load: the passes (`step` to `until`) before the one that it serves.

        Its request holds `slot_tokens` tokens' blocks in them, of which it did not find `blocks` in
        the prefix cache, and does not count as waiting. A
        request that is aborted meanwhile holds them until the copy has ended.
        """
        rows = self.loaded if self.offloads else self.loaded.head(0)
        columns = [*OF_REQUEST, "step", "context_tokens", "slot_tokens", "hit_tokens"]
        served = self.batch[columns].rename(columns={"step": "served_step"})
        spans = rows.merge(served, how="left", on=[*OF_REQUEST, "served_step"])
        spans = spans.join(self.ended, on=OF_REQUEST)
        ended = [
            self._first_pass_from(repeat, time_s)
            for repeat, time_s in zip(spans["repeat"], spans["end_s"], strict=True)
        ]
        freed = np.maximum(spans["at"].to_numpy(float), np.array(ended, float))
        spans["until"] = spans["served_step"].fillna(pd.Series(freed, spans.index))
        of_load = spans["blocks"] * self.records.block_size
        held = spans["slot_tokens" if self._whole_prompts else "context_tokens"].fillna(of_load)
        size, held = self.records.block_size, held.astype(np.int64)
        blocks = blocks_of(held, size) - counts_of(spans["hit_tokens"]) // size
        return spans[["repeat", "step", "until"]].assign(slot_tokens=held, blocks=blocks)

    @cached_property
    def batch(self) -> pd.DataFrame:
        """The rows of `batch`, ordered by request and pass, with the request's earlier history.

        `end_tokens` are the request's tokens in the cache after the pass, `slot_tokens` those that
        its blocks are for (`_slot_tokens`), `sampled_before` the output tokens it had before the
        pass. `previous_step` and `previous_tokens` are the step and
        `end_tokens` of the request's previous row (-1 and 0 if there is none), `previous_saved`
        whether its activations were saved there, and are still kept. `preempted_step` is
        the step whose scheduling last preempted the request (-1 if none did). `admits` is whether
        the pass admits or resumes the request.
        """
        rows = self.records.batch.sort_values([*OF_REQUEST, "step"], ignore_index=True)
        drafts, accepted = (counts_of(rows[c]) for c in ("draft_tokens", "accepted_tokens"))
        given = accepted.clip(upper=(rows["sampled_tokens"] - 1).clip(lower=0))
        rows["end_tokens"] = rows["context_tokens"] + rows["scheduled_tokens"] - drafts + given
        for column in ("saved_tokens", "hit_tokens", "own_hit_tokens", "loaded_tokens"):
            rows[column] = counts_of(rows[column])
        own = rows.groupby(OF_REQUEST)
        rows["sampled_before"] = own["sampled_tokens"].cumsum() - rows["sampled_tokens"]
        rows["previous_step"] = own["step"].shift(fill_value=-1)
        rows["previous_tokens"] = own["end_tokens"].shift(fill_value=0)
        rows["previous_saved"] = own["saved_tokens"].shift(fill_value=0) > 0
        rows["slot_tokens"] = self._slot_tokens(rows)
        rows["preempted_step"] = last_until(rows, self._victim_steps)
        resumes = (rows["preempted_step"] >= 0) & (rows["preempted_step"] > rows["previous_step"])
        rows["admits"] = resumes | (rows["previous_step"] < 0)
        goes_on = self._keeps_tokens(rows) & (rows["context_tokens"] == rows["previous_tokens"])
        rows["previous_saved"] &= ~rows["admits"] | goes_on
        return rows

    def _keeps_tokens(self, rows: pd.DataFrame) -> "pd.Series[bool]":
        """Whether the last preemption before each row was by an action that keeps tokens."""
        lost = self.victims.rename(columns={"step": "preempted_step"})
        of = [*OF_REQUEST, "preempted_step"]
        once = lost[[*of, "policy"]].drop_duplicates(of)
        policy = rows[of].merge(once, how="left", on=of)["policy"]
        return keeps_tokens(policy).set_axis(rows.index)

    @property
    def caches_prefixes(self) -> bool:
        """Whether the run has a prefix cache, whose blocks are known, by its settings."""
        served = bool(self.server and self.server.prefix_caching)
        caches = bool(self.section("cache").get("prefix_caching", served))
        return caches and PREFIXES in self.evidence

    @cached_property
    def kv_groups(self) -> tuple[KvGroup, ...]:
        """The KV groups; empty if they were not recorded."""
        rows = self.records.kv_groups.drop(columns="kv_group").convert_dtypes().astype(object)
        rows = rows.where(rows.notna(), None)
        names = list(map(str, rows))
        return tuple(KvGroup(**dict(zip(names, row, strict=True))) for row in rows.to_numpy())

    @property
    def groups_differ(self) -> bool:
        """Whether a request's blocks do not follow from its tokens and the block size alone."""
        return bool(self.kv_groups) and not has_one_block_table(self.kv_groups)

    @cached_property
    def sharing(self) -> Sharing:
        """Which requests hold the blocks that were found in the prefix cache.

        A request for which others are loaded holds what it found from then on.
        """
        if not self.offloads:
            return self.sharing_in_passes
        admitted, hits = map(self._from_load, (self.batch[self.batch["admits"]], self.records.hits))
        # The rows of one step are not in order then: the first to find a free block is any of them.
        order = np.argsort(hits["in_use"].to_numpy(bool), kind="stable")
        found = self._sharing(admitted, hits.iloc[order])
        found.in_use = found.in_use[np.argsort(order)]
        return found

    @cached_property
    def sharing_in_passes(self) -> Sharing:
        """The same of requests that passes compute, whose tokens count as in the cache."""
        return self._sharing(self.batch[self.batch["admits"]], self.records.hits)

    def _sharing(self, admitted: pd.DataFrame, hits: pd.DataFrame) -> Sharing:
        return Sharing(self.steps, self.ended, self.victims, admitted, hits, self.records.evictions)

    def _from_load(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows with the pass in which a load was ordered in place of the one that it serves."""
        loads = self.loaded.drop_duplicates([*OF_REQUEST, "served_step"])
        ordered = loads.set_index([*OF_REQUEST, "served_step"])["step"]
        served = pd.MultiIndex.from_frame(rows[[*OF_REQUEST, "step"]])
        begun = ordered.reindex(served).set_axis(rows.index).fillna(rows["step"])
        return rows.assign(step=begun.astype(np.int64))

    @property
    def shared_blocks(self) -> pd.Series:
        """Of each victim, the blocks that other requests held as well, as recorded."""
        return counts_of(self.victims["shared_blocks"])

    @property
    def _victim_steps(self) -> pd.DataFrame:
        """Repeat, request and step (as `at`) of each preemption."""
        return self.victims[[*OF_REQUEST, "step"]].rename(columns={"step": "at"})

    def _slot_tokens(self, rows: pd.DataFrame) -> pd.Series:
        """Tokens that a request's blocks are for: those in the cache.

        By the rules of vLLM 0.4.2, all of a prompt, with the output tokens that are recomputed,
        once its first chunk is computed.
        """
        if not self._whole_prompts:
            return rows["end_tokens"]
        prompts = self.records.requests[[*OF_REQUEST, "prompt_tokens"]]
        prompt = rows[OF_REQUEST].merge(prompts, how="left", on=OF_REQUEST)["prompt_tokens"]
        whole = (prompt.fillna(0) + rows["sampled_before"]).astype(np.int64)
        return rows["end_tokens"].where(rows["phase"] != PREFILL, rows["end_tokens"].clip(whole))

    @property
    def _whole_prompts(self) -> bool:
        return self.section("cache").get("admission") == VLLM_0_4_2

    @cached_property
    def ended(self) -> pd.DataFrame:
        """`at`, indexed by request: the first step after the request was served or aborted."""
        last = self.batch.groupby(OF_REQUEST)["step"].max().rename("at") + 1.0
        ended = self.records.requests[[*OF_REQUEST, "finished_s", "aborted"]].join(
            last, on=OF_REQUEST
        )
        for at, repeat, time_s, aborted in zip(
            ended.index, ended["repeat"], ended["finished_s"], ended["aborted"], strict=True
        ):
            if aborted:
                ended.loc[at, "at"] = self._first_pass_from(repeat, time_s)
        return ended.fillna({"at": np.inf}).set_index(OF_REQUEST)[["at"]]

    @cached_property
    def count_ended(self) -> Ints:
        """The number of requests that had ended, one value a pass."""
        ended = self.ended.reset_index()
        return self.sum_over_passes(ended.assign(step=ended["at"], until=np.inf), 1)

    def count_arrived(self, column: str) -> Ints:
        """The number of requests that had arrived by the time in `column`, one value a pass."""
        counts = np.zeros(len(self.steps), np.int64)
        for repeat, steps in self.steps.groupby("repeat"):
            of_repeat = self.records.requests.loc[
                self.records.requests["repeat"] == repeat, "arrival_s"
            ]
            counts[steps.index] = of_repeat.sort_values().searchsorted(steps[column], side="right")
        return counts

    def _first_pass_from(self, repeat: int, time_s: float) -> int:
        starts = self.steps.loc[self.steps["repeat"] == repeat, "start_s"].to_numpy()
        return int(np.searchsorted(starts, time_s - TOLERANCE_S))

    @cached_property
    def stays(self) -> pd.DataFrame:
        """One row a stay: `repeat`, first `step`, `until` (the step after the last), `tokens`.

        `context_tokens` were there before its pass, `slot_tokens` are those that its blocks are
        for, `saved_tokens` those that its pass saved.
        """
        rows = self.batch
        following = rows.groupby(OF_REQUEST)["step"].shift(-1)
        lost_at = first_after(rows, self._victim_steps)
        ended = rows.join(self.ended, on=OF_REQUEST)["at"]
        until = pd.concat([following, lost_at, ended], axis=1).min(axis=1)
        return pd.DataFrame(
            {
                "repeat": rows["repeat"],
                "step": rows["step"],
                "until": until,
                "tokens": rows["end_tokens"],
                "context_tokens": rows["context_tokens"],
                "slot_tokens": rows["slot_tokens"],
                "saved_tokens": rows["saved_tokens"],
            }
        )

    def away(self, is_kept: Callable[["pd.Series[str]"], "pd.Series[bool]"]) -> pd.DataFrame:
        """The spans (`step` to `until`) of victims whose action `is_kept`.

        A span ends where the request resumes, which may be in the pass that preempted it, or ends.
        """
        out = self.victims[is_kept(self.victims["policy"])].reset_index(drop=True)
        back = self.resumptions[is_kept(self.resumptions["policy"])]
        back = back.rename(columns={"step": "at"})[[*OF_REQUEST, "at"]]
        ended = out.join(self.ended, on=OF_REQUEST)["at"].fillna(np.inf)
        resumed = first_after(out.assign(step=out["step"] - 1), back)
        until = np.minimum(resumed.fillna(np.inf), ended)
        return out.assign(until=until)

    def saved_before(self, victims: pd.DataFrame) -> pd.Series:
        """Whether the activations of each victim were saved in its last pass."""
        passes = self.batch.rename(columns={"step": "at"})[[*OF_REQUEST, "at", "saved_tokens"]]
        at = last_until(victims, passes[[*OF_REQUEST, "at"]])
        last = victims[OF_REQUEST].assign(at=at).merge(passes, how="left")
        return last["saved_tokens"].set_axis(victims.index).fillna(0) > 0

    @cached_property
    def activation_blocks(self) -> Ints:
        """Host blocks of activations, one value a pass.

        They are kept of each request that runs and was saved in its last pass, and of such a
        victim that is not recomputed.
        """
        stays = self.stays[self.stays["saved_tokens"] > 0]
        away = self.away(keeps_tokens)
        saved, blocks = self.saved_before(away), blocks_of(away["tokens"], self.records.block_size)
        running = self.sum_over_passes(stays, blocks_of(stays["tokens"], self.records.block_size))
        return running + self.sum_over_passes(away[saved], blocks[saved])

    def sum_over_passes(self, spans: pd.DataFrame, values: pd.Series | int) -> Ints:
        """Sum the values of the spans (`step` to `until`) that cover a pass, one value a pass."""
        sizes = self.steps.groupby("repeat").size()
        first = (sizes.cumsum() - sizes).reindex(spans["repeat"]).to_numpy()
        length = sizes.reindex(spans["repeat"]).to_numpy()
        begin = first + np.clip(spans["step"].to_numpy(float), 0, length)
        end = first + np.clip(spans["until"].fillna(np.inf).to_numpy(float), 0, length)
        weights = np.broadcast_to(np.asarray(values, float), begin.shape)
        count = len(self.steps) + 1
        begins, ends = (
            np.bincount(edge.astype(np.int64), weights, count)
            for edge in (begin, np.maximum(begin, end))
        )
        total: Ints = np.rint(np.cumsum(begins - ends)[:-1]).astype(np.int64)
        return total


def last_until(rows: pd.DataFrame, events: pd.DataFrame) -> pd.Series:
    """The last `at` among the events of a row's request up to its step, or -1; one a row."""
    return _nearest(rows, events, "backward").fillna(-1).astype(np.int64)


def first_after(rows: pd.DataFrame, events: pd.DataFrame) -> pd.Series:
    """The first `at` among the events of a row's request after its step, or NaN; one a row."""
    return _nearest(rows.assign(step=rows["step"] + 1), events, "forward")


def _nearest(rows: pd.DataFrame, events: pd.DataFrame, direction: Any) -> pd.Series:
    if events.empty:
        return pd.Series(np.nan, rows.index)
    wanted = rows[[*OF_REQUEST, "step"]].astype({"step": np.int64, "repeat": np.int64})
    known = events.astype({"at": np.int64, "repeat": np.int64})
    found = pd.merge_asof(
        wanted.reset_index().sort_values("step", kind="stable"),
        known.sort_values("at").assign(found=known["at"].astype(float)),
        left_on="step",
        right_on="at",
        by=OF_REQUEST,
        direction=direction,
    )
    return found.set_index("index")["found"].reindex(rows.index)


def differ(one: pd.Series, other: pd.Series) -> Bools:
    """Where two columns differ; nothing differs from nothing."""
    same = (one == other).fillna(False) | (one.isna() & other.isna())
    wrong: Bools = ~same.to_numpy(dtype=bool)
    return wrong


def bad_rows(
    frame: pd.DataFrame, bad: pd.Series | Bools, words: Callable[[Mapping[str, Any]], str]
) -> Violations:
    """One violation a bad row; the first is described by its repeat, pass, request and `words`."""
    at = np.flatnonzero(np.asarray(bad, dtype=bool))
    if not len(at):
        return NONE
    row = {str(name): value for name, value in frame.iloc[int(at[0])].items()}
    names = {"repeat": "repeat", "step": "step", "request_id": "request", "layer": "layer"}
    place = ", ".join(f"{name} {row[key]}" for key, name in names.items() if key in row)
    return Violations(len(at), f"{place}: {words(row)}" if place else words(row))


def combine(*found: Violations) -> Violations:
    """The sum of several violations."""
    return sum(found, NONE)


def counts_of(column: pd.Series) -> pd.Series:
    """A column of counts, 0 where it is null."""
    return column.astype(float).fillna(0).astype(np.int64)


def blocks_of(tokens: pd.Series, block_size: int) -> pd.Series:
    """The number of blocks that hold so many tokens of one request: ⌈tokens / block size⌉."""
    return -(-tokens.astype(np.int64) // block_size)
