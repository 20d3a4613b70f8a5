"""Life of a request: stretches from its arrival to its end, each of one kind.

The stretches of a request follow each other without a gap, so their durations add up to its
latency. Everything in them follows from the tables of the run.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from kvscope.api.errors import BadInput
from kvscope.api.runs import RunData
from kvscope.api.tables import copies, passes

QUEUED = "queued"
PREFILLED = "prefill"
DECODED = "decode"
PAUSED = "paused"
PREEMPTED = "preempted"
LOADED = "load"
COPIED = "copied in"
RECOMPUTED = "recompute"
KINDS = {
    QUEUED: "waits for its first pass",
    PREFILLED: "computes its prompt",
    DECODED: "computes a token in each pass",
    PAUSED: "keeps its blocks while passes compute other requests",
    PREEMPTED: "has lost its blocks and waits to resume",
    LOADED: "waits for blocks that vLLM's offloading loads from the host",
    COPIED: "its pass begins, and copies its blocks back",
    RECOMPUTED: "computes tokens again that it had lost",
}
"""Meaning of each kind of stretch."""
FOUND = ("hit", "own_hit", "loaded")
"""Facts of a pass: columns of `batch`, of tokens that a request need not compute."""
LAST = "last"  # `overflow.victim` where vLLM chooses
SHORTEST_S = 1e-9
"""Shortest stretch; below it is the rounding of two instants."""
Floats = npt.NDArray[np.float64]
Events = list[dict[Hashable, Any]]
USEFUL = (PREFILLED, DECODED)
"""The kinds that a request would have without other requests."""


@dataclass(frozen=True)
class Stretch:
    """One part of a request's life; times in seconds since the repeat's start.

    `steps` are the first and the last pass in it, where there are any. `facts` are what the tables
    say of it, by kind: see `Lives`.
    """

    request_id: str
    kind: str
    start_s: float
    end_s: float
    steps: tuple[int, int] | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def duration_s(self) -> float:
        """Seconds from its start to its end."""
        return self.end_s - self.start_s

    def as_json(self) -> dict[str, Any]:
        """Its fields and its duration as a JSON object."""
        return asdict(self) | {"duration_s": self.duration_s}


class Lives:
    """The requests of one repeat of a run.

    `facts` of a stretch: of a queued one `ahead` (requests that arrived before and waited) and
    `no_room_s` (seconds in which fewer blocks were free than its prompt needs); of passes `passes`,
    `tokens` (computed for it) and `sampled`; of a paused one `passes` and `prefill_tokens` of
    others; of a preempted one `action`, `refused`, `tokens` (in the cache when it was preempted),
    `blocks` (that it lost), `for_requests` (those that got blocks in that pass), `victim` (the
    rule by which it was chosen: `overflow.victim`, or null if a policy ranks requests itself); of a
    copy `bytes`; of a load `blocks`, `bytes` and `load_s` (of the copy: the rest of the stretch is
    waiting for earlier copies and for the next pass). Passes that admit or resume have `hit`,
    `own_hit` and `loaded` where they are not 0: tokens found in the prefix cache, of these its own,
    and tokens loaded by vLLM's offloading. `settings` are those of the run's experiment.yaml.
    """

    def __init__(self, repeat: RunData, settings: Mapping[str, Any]) -> None:
        self._run, self._settings = repeat, settings
        self._steps = repeat.steps.set_index("step").sort_index()
        self._steps["end_s"] = self._steps["start_s"] + self._steps["duration_s"]
        if self._steps.empty or repeat.batch.empty or repeat.requests.empty:
            raise BadInput(f"{repeat.directory}: no passes of requests are recorded")
        times = self._steps[["start_s", "end_s", "requests"]]
        rows = repeat.batch.join(times, on="step").sort_values("step")
        rows["admitted"] = _admitted(rows, repeat.preemptions)
        self._rows = {
            str(name): rows_of_request for name, rows_of_request in rows.groupby("request_id")
        }
        preempting = rows["step"].isin(repeat.preemptions["step"])
        self._in_pass = dict(iter(rows[preempting].groupby("step")))
        events, transfers = repeat.preemptions, repeat.transfers
        lost = events[events["event"] == "preempt"].sort_values("step", kind="stable")
        self._lost = _grouped(lost, "request_id")
        back = transfers[transfers["direction"] == copies.IN].dropna(subset=["start_s", "end_s"])
        self._copies = _grouped(back, "request_id", "step")
        loads = repeat.jobs[repeat.jobs["direction"] == copies.IN]
        loads = loads.dropna(subset=["start_s", "end_s"])
        self._loads = _grouped(loads.sort_values("ordered_s"), "request_id")
        self._requests = repeat.requests.set_index("request_id")
        self._rank = self._requests["arrival_s"].rank(method="first")
        self._known: dict[str, list[Stretch]] = {}

    @property
    def time_source(self) -> str:
        """Source of the run's times."""
        return self._run.time_source

    @cached_property
    def latencies_s(self) -> dict[str, float]:
        """Seconds from arrival to end of each request, slowest first."""
        took_s = self._requests["finished_s"] - self._requests["arrival_s"]
        ordered = took_s.sort_values(ascending=False, kind="stable")
        return {str(name): float(value) for name, value in ordered.items()}

    def row(self, request_id: str) -> dict[str, Any]:
        """The row of `requests` of a request; BadInput if the repeat has no such request."""
        if request_id not in self._requests.index:
            first_ids = ", ".join(map(str, self._requests.index[:8]))
            raise BadInput(
                f"{self._run.directory}: no request {request_id!r:.60}; requests are {first_ids}, …"
            )
        return {str(k): v for k, v in self._requests.loc[request_id].to_dict().items()}

    @cached_property
    def all(self) -> list[Stretch]:
        """The stretches of all requests, in the order of the table."""
        return [stretch for request_id in self._requests.index for stretch in self.of(request_id)]

    def of(self, request_id: str) -> list[Stretch]:
        """The stretches of one request, in order; BadInput if the repeat has no such request."""
        if request_id not in self._known:
            stretches = [s for s in self._stretches(request_id) if s.duration_s > SHORTEST_S]
            self._known[request_id] = merged(stretches)
        return self._known[request_id]

    def _stretches(self, request_id: str) -> Iterator[Stretch]:
        """Stretches pass by pass; the host's time between two passes belongs to the later one."""
        request = self.row(request_id)
        rows, lost = self._rows.get(request_id), self._lost.get(request_id, [])
        now_s, before, kind = float(request["arrival_s"]), -1, QUEUED
        for row in [] if rows is None else rows.to_dict("records"):
            begin_s, step = float(row["start_s"]), int(row["step"])
            gone = [preemption for preemption in lost if before < preemption["step"] <= step]
            if before < 0:
                loads = self._loading(request_id, now_s, begin_s)
                yield self._queued(request_id, now_s, loads.start_s)
                yield loads
                now_s = begin_s
            if gone:
                victim = gone[0]
                lost_s = max(now_s, float(victim["time_s"]))
                yield from self._until_lost(kind, request_id, before, victim, now_s, lost_s)
                loads = self._loading(request_id, lost_s, begin_s)
                yield self._preempted(request_id, victim, lost_s, loads.start_s)
                yield loads
                now_s = begin_s
            elif before >= 0 and step > before + 1:
                yield from self._paused(request_id, before, step, now_s)
                now_s = float(self._steps["end_s"].loc[step - 1])
            for stretch in self._computed(request_id, row, now_s):
                yield stretch
                kind = stretch.kind
            now_s, before = float(row["end_s"]), step
        if request["aborted"] and (end_s := float(request["finished_s"])) > now_s:
            yield from self._aborted(request_id, lost, before, now_s, end_s)

    def _queued(self, request_id: str, start_s: float, end_s: float) -> Stretch:
        first_s, begin_s, stop_s, free = self._arrays
        ahead = (self._rank < self._rank[request_id]).to_numpy() & ~(first_s <= start_s)
        size = self._run.whole.block_size
        needed = -(-int(self._requests["prompt_tokens"][request_id]) // size) if size else 0
        full = (stop_s > start_s) & (begin_s < end_s) & (free < needed)
        within_s = np.minimum(stop_s[full], end_s) - np.maximum(begin_s[full], start_s)
        facts = {"ahead": int(ahead.sum()), "no_room_s": float(within_s.sum()), "blocks": needed}
        return Stretch(request_id, QUEUED, start_s, end_s, facts=facts)

    @cached_property
    def _arrays(self) -> tuple[Floats, Floats, Floats, Floats]:
        """When each request was first scheduled; of each pass start, end and free blocks."""
        steps = self._steps
        free = steps["kv_blocks_total"] - steps["kv_blocks_used"]
        columns = (self._requests["first_scheduled_s"], steps["start_s"], steps["end_s"], free)
        first_s, begin_s, stop_s, free_blocks = (column.to_numpy(float) for column in columns)
        return first_s, begin_s, stop_s, free_blocks

    def _loading(self, request_id: str, start_s: float, end_s: float) -> Stretch:
        """The end of a wait from the first order of a load on; of no length where none was."""
        loads = [
            load for load in self._loads.get(request_id, []) if start_s <= load["ordered_s"] < end_s
        ]
        ordered_s = min((float(load["ordered_s"]) for load in loads), default=end_s)
        facts = {
            "blocks": sum(int(load["blocks"]) for load in loads),
            "bytes": sum(int(load["bytes"]) for load in loads),
            "load_s": sum(float(load["end_s"]) - float(load["start_s"]) for load in loads),
        }
        return Stretch(request_id, LOADED, ordered_s, end_s, facts=facts)

    def _paused(self, request_id: str, before: int, step: int, now_s: float) -> Iterator[Stretch]:
        """The passes of others after `before` and before `step`."""
        others = self._steps.loc[before + 1 : step - 1]
        if others.empty:
            return
        facts = {
            "passes": len(others),
            "prefill_tokens": int(others["prefill_tokens"].sum()),
        }
        steps = int(others.index[0]), int(others.index[-1])
        end_s = float(others["end_s"].iloc[-1])
        yield Stretch(request_id, PAUSED, now_s, end_s, steps, facts)

    def _until_lost(
        self, kind: str, request_id: str, before: int, victim: Any, now_s: float, lost_s: float
    ) -> Iterator[Stretch]:
        """From its last pass, of this kind, until it is preempted: others run, or the host does."""
        for stretch in self._paused(request_id, before, int(victim["step"]), now_s):
            yield stretch
            kind, now_s = stretch.kind, stretch.end_s
        yield Stretch(request_id, kind, now_s, lost_s)

    def _preempted(self, request_id: str, victim: Any, start_s: float, end_s: float) -> Stretch:
        step = int(victim["step"])
        ran = self._in_pass.get(step, self._run.batch.iloc[:0])
        facts = {
            "action": str(victim["policy"]),
            "refused": bool(victim["refused"]),
            "tokens": int(victim["tokens"]),
            "blocks": int(victim["blocks"]),
            "for_requests": self._given_blocks(ran, request_id),
            "victim": self._chosen_by(request_id, step, ran),
        }
        return Stretch(request_id, PREEMPTED, start_s, end_s, (step, step), facts)

    def _given_blocks(self, ran: pd.DataFrame, victim: str) -> list[str]:
        """The requests that got a block in a pass, of its rows."""
        size, before = self._run.whole.block_size or 1, ran["context_tokens"]
        after = before + ran["scheduled_tokens"]
        grew = -(-after // size) > -(-before // size)
        return [str(name) for name in ran["request_id"][grew] if name != victim]

    def _chosen_by(self, request_id: str, step: int, ran: pd.DataFrame) -> str | None:
        """The rule by the settings; where vLLM's own would be, only if the passes agree."""
        rule = str(self._overflow.get("victim", LAST))
        if rule != LAST:
            return rule
        rows = self._rows[request_id]
        earlier = rows["admitted"][rows["step"] < step]
        others = ran["admitted"][ran["admitted"] < step]
        return LAST if earlier.empty or not (others > earlier.iloc[-1]).any() else None

    @cached_property
    def _overflow(self) -> dict[str, Any]:
        """The overflow policy of the settings; empty where there are none."""
        overflow = self._settings.get("overflow", {})
        return dict(overflow) if isinstance(overflow, dict) else {}

    def _computed(
        self, request_id: str, row: dict[Hashable, Any], now_s: float
    ) -> Iterator[Stretch]:
        """Stretches of a pass of the request: copies in, and computation."""
        if row["recomputed_tokens"]:
            kind = RECOMPUTED
        else:
            kind = PREFILLED if row["phase"] == passes.PREFILL else DECODED
        step, end_s = int(row["step"]), float(row["end_s"])
        facts = {
            "passes": 1,
            "tokens": int(row["scheduled_tokens"]),
            "sampled": int(row["sampled_tokens"]),
            "beside": int(row["requests"]) - 1,
        }
        for name in FOUND:
            if (tokens := row[f"{name}_tokens"]) and not pd.isna(tokens):
                facts[name] = int(tokens)
        for copy in self._copies.get((request_id, step), []):
            done_s = min(max(now_s, float(copy["end_s"])), end_s)
            moved = {"bytes": int(copy["bytes"]), "kind": str(copy["kind"])}
            yield Stretch(request_id, COPIED, now_s, done_s, (step, step), moved)
            now_s = done_s
        yield Stretch(request_id, kind, now_s, end_s, (step, step), facts)

    def _aborted(
        self, request_id: str, lost: Events, before: int, start_s: float, end_s: float
    ) -> Iterator[Stretch]:
        """From its last pass until it was aborted."""
        gone = [preemption for preemption in lost if preemption["step"] > before]
        if before < 0:
            yield self._queued(request_id, start_s, end_s)
        elif gone:
            victim = gone[0]
            lost_s = min(max(start_s, float(victim["time_s"])), end_s)
            yield from self._until_lost(PAUSED, request_id, before, victim, start_s, lost_s)
            yield self._preempted(request_id, victim, lost_s, end_s)
        else:
            yield Stretch(request_id, PAUSED, start_s, end_s)


def _grouped(rows: pd.DataFrame, *keys: str) -> dict[Any, Events]:
    """The rows as mappings, by these columns."""
    events_of: dict[Any, Events] = {}
    for row in rows.to_dict("records"):
        values = tuple(row[key] for key in keys)
        events_of.setdefault(values if len(keys) > 1 else values[0], []).append(row)
    return events_of


def _admitted(rows: pd.DataFrame, preemptions: pd.DataFrame) -> pd.Series:
    """The pass since which each row's request runs: its first, or that in which it resumed."""
    back = preemptions[preemptions["event"] == "resume"][["request_id", "step"]]
    resumes = pd.MultiIndex.from_frame(rows[["request_id", "step"]]).isin(
        pd.MultiIndex.from_frame(back)
    )
    begins = resumes | ~rows["request_id"].duplicated()
    return rows["step"].where(begins).groupby(rows["request_id"]).ffill()


SUMS = ("passes", "tokens", "sampled", "bytes", *FOUND)


def merged(stretches: list[Stretch]) -> list[Stretch]:
    """Neighbours of one kind as one stretch; those are passes, or pauses."""
    joined: list[Stretch] = []
    for stretch in stretches:
        last = joined[-1] if joined else None
        if last is None or last.kind != stretch.kind:
            joined.append(stretch)
            continue
        sums = {
            name: last.facts.get(name, 0) + stretch.facts.get(name, 0)
            for name in SUMS
            if name in last.facts or name in stretch.facts
        }
        beside = max(last.facts.get("beside", 0), stretch.facts.get("beside", 0))
        facts = last.facts | stretch.facts | sums
        if "beside" in facts:
            facts["beside"] = beside
        steps = _span(last.steps, stretch.steps)
        joined[-1] = Stretch(last.request_id, last.kind, last.start_s, stretch.end_s, steps, facts)
    return joined


def _span(first: tuple[int, int] | None, second: tuple[int, int] | None) -> tuple[int, int] | None:
    if first is None or second is None:
        return first or second
    return first[0], second[1]


def seconds_by_kind(stretches: list[Stretch]) -> dict[str, float]:
    """The seconds of each kind that occurs, in the order of KINDS."""
    kinds = np.array([stretch.kind for stretch in stretches])
    seconds = np.array([stretch.duration_s for stretch in stretches])
    return {kind: float(seconds[kinds == kind].sum()) for kind in KINDS if (kinds == kind).any()}
