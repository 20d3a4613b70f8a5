"""Life of a request: stretches from its arrival to its end, each of one kind.

The stretches of a request follow each other without a gap, so their durations add up to its
latency, and the causes of a stretch add up to its duration. Everything in them follows from the
tables of the run, and from a replay of its decisions.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from kvscope.api.errors import BadInput
from kvscope.api.runs import RunView
from kvscope.api.tables import copies, passes
from kvscope_explain import causes as why
from kvscope_explain.limits import Limits
from kvscope_explain.refusals import refusals_of
from kvscope_explain.waits import Wait, Waits

QUEUED = "queued"
PREFILLED = "prefill"
DECODED = "decode"
PAUSED = "paused"
PREEMPTED = "preempted"
LOADED = "load"
COPIED = "copied in"
RECOMPUTED = "recompute"
THRASHED = "thrash"
KINDS = {
    QUEUED: "waits for its first pass",
    PREFILLED: "computes its prompt",
    DECODED: "computes a token in each pass",
    PAUSED: "keeps its blocks while passes compute other requests",
    PREEMPTED: "has lost its blocks and waits to resume",
    LOADED: "waits for blocks that vLLM's offloading loads from the host",
    COPIED: "its pass begins, and copies its blocks back",
    RECOMPUTED: "computes tokens again that it had lost",
    THRASHED: "is preempted again and again before it gives a token",
}
"""Meaning of each kind of stretch."""
FOUND = ("hit", "own_hit", "loaded")
"""Facts of a pass: columns of `batch`, of tokens that a request need not compute."""
LAST = "last"  # `overflow.victim` where vLLM chooses
SHORTEST_S = 1e-9
"""Shortest stretch; below it is the rounding of two instants."""
Floats = npt.NDArray[np.float64]
Events = list[dict[Hashable, Any]]


@dataclass(frozen=True)
class Stretch:
    """One part of a request's life; times in seconds since the repeat's start.

    `steps` are the first and the last pass in it, where there are any. `facts` are what the tables
    say of it, by kind: see `Lives`. `causes` are the seconds of each of its causes
    (`kvscope_explain.causes`).
    """

    request_id: str
    kind: str
    start_s: float
    end_s: float
    steps: tuple[int, int] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    causes: why.Causes = field(default_factory=dict)

    @property
    def duration_s(self) -> float:
        """Seconds from its start to its end."""
        return self.end_s - self.start_s

    def as_json(self) -> dict[str, Any]:
        """Its fields and its duration as a JSON object."""
        return asdict(self) | {"duration_s": self.duration_s}


class Lives:
    """The requests of one repeat of a run.

    `facts` of a stretch: of a queued one `ahead` (requests that waited before it in the queue) and
    `same_instant` (those of them that came when it did); of each wait `waits`, by cause; of passes
    `passes`, `tokens` (computed for it) and `sampled`; of a paused one `passes` and
    `prefill_tokens` of others; of a preempted one `action`, `refused`, `tokens` (in the cache when
    it was preempted), `blocks` (that it gave back), `shared_blocks` (that others held, too),
    `for_requests` (those that got blocks in that pass), `victim` (the rule by which it was chosen:
    `overflow.victim`, or null if a policy ranks requests itself); of a copy `bytes`; of a load
    `blocks` and `bytes`; of thrash `preemptions`, `tokens` (computed again in it), `new_tokens` and
    `in_prefill`.
    Passes that admit or resume have `hit`, `own_hit` and `loaded` where they are not 0: tokens
    found in the prefix cache, of these its own, and tokens loaded by vLLM's offloading. `settings`
    are those of the run's experiment.yaml.
    """

    def __init__(self, repeat: RunView, settings: Mapping[str, Any]) -> None:
        self._run, self._settings = repeat, settings
        self._steps = repeat.steps.set_index("step").sort_index()
        self._steps["end_s"] = self._steps["start_s"] + self._steps["duration_s"]
        if self._steps.empty or repeat.batch.empty or repeat.requests.empty:
            raise BadInput(f"{repeat.directory}: no passes of requests are recorded")
        times = self._steps[["start_s", "end_s", "requests", "prefill_tokens"]]
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
        self._prompts = self._requests["prompt_tokens"].to_dict()
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
            self._known[request_id] = folded(merged(stretches))
        return self._known[request_id]

    @cached_property
    def _limits(self) -> Limits:
        """The limits of passes and of admission."""
        server = self._run.whole.record.recorded
        return Limits.of(self._settings, {} if server is None else server.model_dump())

    @cached_property
    def _waits(self) -> Waits:
        """The causes of waits."""
        steps = self._steps
        starts_s, again = steps["start_s"].tolist(), steps["recomputed_tokens"].tolist()
        return Waits(refusals_of(self._run, self._limits), starts_s, again)

    def _stretches(self, request_id: str) -> Iterator[Stretch]:
        """Stretches pass by pass; the host's time between two passes belongs to the later one."""
        request = self.row(request_id)
        rows, lost = self._rows.get(request_id), self._lost.get(request_id, [])
        now_s, before, kind = float(request["arrival_s"]), -1, QUEUED
        for row in [] if rows is None else rows.to_dict("records"):
            begin_s, step = float(row["start_s"]), int(row["step"])
            gone = [preemption for preemption in lost if before < preemption["step"] <= step]
            if before < 0:
                ordered_s, loads = self._loads_in(request_id, now_s, begin_s)
                yield self._queued(request_id, now_s, ordered_s)
                yield self._loading(request_id, loads, ordered_s, begin_s, resumes=False)
                now_s = begin_s
            if gone:
                victim = gone[0]
                lost_s = max(now_s, float(victim["time_s"]))
                yield from self._until_lost(kind, request_id, before, victim, now_s, lost_s)
                ordered_s, loads = self._loads_in(request_id, lost_s, begin_s)
                yield self._preempted(request_id, victim, lost_s, ordered_s)
                yield self._loading(request_id, loads, ordered_s, begin_s, resumes=True)
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
        requests, first_s = self._requests, self._first_s
        ahead = (self._rank < self._rank[request_id]).to_numpy() & ~(first_s <= start_s)
        came_s = requests["arrival_s"].to_numpy(float)
        facts = {
            "ahead": int(ahead.sum()),
            "same_instant": int((ahead & (came_s == came_s[self._place[request_id]])).sum()),
        }
        return self._waiting(request_id, QUEUED, start_s, end_s, facts)

    @cached_property
    def _first_s(self) -> Floats:
        """When each request was first scheduled, or ended without; in the order of the table."""
        never_s = self._requests["finished_s"]
        return self._requests["first_scheduled_s"].fillna(never_s).to_numpy(float)

    @cached_property
    def _place(self) -> dict[str, int]:
        """The row of each request."""
        return {str(name): place for place, name in enumerate(self._requests.index)}

    def _waiting(
        self,
        request_id: str,
        kind: str,
        start_s: float,
        end_s: float,
        facts: dict[str, Any],
        first: str = why.NEXT_PASS,
        steps: tuple[int, int] | None = None,
    ) -> Stretch:
        """A stretch of waiting, with its causes; `first` is that of the time until a pass."""
        waits = self._waits.between(request_id, start_s, end_s, first)
        return Stretch(
            request_id, kind, start_s, end_s, steps, facts | {"waits": waits}, _causes(waits)
        )

    def _loads_in(self, request_id: str, start_s: float, end_s: float) -> tuple[float, Events]:
        """The loads that were ordered in a wait, and when the first was; its end without any."""
        loads = [
            load for load in self._loads.get(request_id, []) if start_s <= load["ordered_s"] < end_s
        ]
        return min((float(load["ordered_s"]) for load in loads), default=end_s), loads

    def _loading(
        self, request_id: str, loads: Events, ordered_s: float, end_s: float, resumes: bool
    ) -> Stretch:
        """The end of a wait from the first order of a load on; of no length where none was.

        The copy may wait for earlier ones; the scheduler learns of its end with a later pass, and
        may not admit the request then.
        """
        if not loads:
            return Stretch(request_id, LOADED, ordered_s, end_s)
        begun_s = min(float(load["start_s"]) for load in loads)
        copied_s = max(float(load["end_s"]) for load in loads)
        steps = [load["arrived_step"] for load in loads if not pd.isna(load["arrived_step"])]
        known_s = float(self._steps["start_s"].loc[max(map(int, steps))]) if steps else end_s
        ends_s = [min(max(each, ordered_s), end_s) for each in (begun_s, copied_s, known_s)]
        queued, copy, noticed = np.diff([ordered_s, *np.maximum.accumulate(ends_s)]).tolist()
        waits = [
            Wait(cause, seconds)
            for cause, seconds in (
                (why.LOAD_QUEUED, queued),
                (why.LOAD_COPY, copy),
                (why.LOAD_NOTICED, noticed),
            )
            if seconds > 0
        ]
        since_s = max(ends_s)
        waits += self._waits.between(request_id, since_s, end_s, why.LOAD_NOTICED)
        facts = {
            "blocks": sum(int(load["blocks"]) for load in loads),
            "bytes": sum(int(load["bytes"]) for load in loads),
            "resumes": resumes,
            "waits": waits,
        }
        return Stretch(request_id, LOADED, ordered_s, end_s, None, facts, _causes(waits))

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
        yield _caused(Stretch(request_id, PAUSED, now_s, end_s, steps, facts), why.PAUSED)

    def _until_lost(
        self, kind: str, request_id: str, before: int, victim: Any, now_s: float, lost_s: float
    ) -> Iterator[Stretch]:
        """From its last pass, of this kind, until it is preempted: others run, or the host does."""
        for stretch in self._paused(request_id, before, int(victim["step"]), now_s):
            yield stretch
            kind, now_s = stretch.kind, stretch.end_s
        yield _caused(Stretch(request_id, kind, now_s, lost_s), CAUSE_OF.get(kind, why.PAUSED))

    def _preempted(self, request_id: str, victim: Any, start_s: float, end_s: float) -> Stretch:
        step = int(victim["step"])
        ran = self._in_pass.get(step, self._run.batch.iloc[:0])
        facts = {
            "action": str(victim["policy"]),
            "refused": bool(victim["refused"]),
            "tokens": int(victim["tokens"]),
            "blocks": int(victim["blocks"]),
            "shared_blocks": _count(victim.get("shared_blocks")),
            "in_prefill": int(victim["tokens"]) < int(self._prompts[request_id]),
            "reserves_all": self._limits.reserves_all,
            "for_requests": self._given_blocks(ran, request_id),
            "victim": self._chosen_by(request_id, step, ran),
        }
        return self._waiting(
            request_id, PREEMPTED, start_s, end_s, facts, why.NO_ROOM, (step, step)
        )

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
        step, end_s = int(row["step"]), float(row["end_s"])
        for copy in self._copies.get((request_id, step), []):
            done_s = min(max(now_s, float(copy["end_s"])), end_s)
            moved = {"bytes": int(copy["bytes"]), "kind": str(copy["kind"])}
            copied = Stretch(request_id, COPIED, now_s, done_s, (step, step), moved)
            yield _caused(copied, why.COPY)
            now_s = done_s
        found = {
            name: int(tokens)
            for name in FOUND
            if (tokens := row[f"{name}_tokens"]) and not pd.isna(tokens)
        }
        beside = {"beside": int(row["requests"]) - 1}
        tokens, again = int(row["scheduled_tokens"]), int(row["recomputed_tokens"])
        again_s = (end_s - now_s) * again / tokens if tokens else 0.0
        if again:
            facts = {"passes": 1, "tokens": again, "sampled": 0} | beside | found
            stretch = Stretch(request_id, RECOMPUTED, now_s, now_s + again_s, (step, step), facts)
            yield _caused(stretch, why.RECOMPUTE)
            found = {}
        if tokens > again:
            first = int(row["context_tokens"]) + again  # of the tokens that are new
            decodes = row["phase"] == passes.DECODE or first >= self._prompts[request_id]
            kind, cause = (DECODED, why.DECODE) if decodes else (PREFILLED, why.PREFILL)
            if decodes and row["prefill_tokens"] > (0 if row["phase"] == passes.DECODE else tokens):
                cause = why.BESIDE
            facts = {"passes": 1, "tokens": tokens - again, "sampled": int(row["sampled_tokens"])}
            facts |= beside | found
            stretch = Stretch(request_id, kind, now_s + again_s, end_s, (step, step), facts)
            yield _caused(stretch, cause)

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
            yield _caused(Stretch(request_id, PAUSED, start_s, end_s), why.PAUSED)


CAUSE_OF = {
    PREFILLED: why.PREFILL,
    DECODED: why.DECODE,
    RECOMPUTED: why.RECOMPUTE,
    COPIED: why.COPY,
    PAUSED: why.PAUSED,
}
"""Cause of the time between the end of a stretch of a kind and a preemption."""


def _caused(stretch: Stretch, cause: str) -> Stretch:
    """A stretch, all of which has one cause."""
    return replace(stretch, causes={cause: stretch.duration_s})


def _causes(waits: Sequence[Wait]) -> dict[str, float]:
    """Seconds of each cause of a wait."""
    return why.total({wait.cause: wait.seconds} for wait in waits)


def _count(value: Any) -> int:
    return 0 if value is None or pd.isna(value) else int(value)


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
        spent = why.total((last.causes, stretch.causes))
        joined[-1] = replace(last, end_s=stretch.end_s, steps=steps, facts=facts, causes=spent)
    return joined


IN_THRASH = (PREEMPTED, RECOMPUTED, PREFILLED, LOADED, COPIED, PAUSED)


def folded(stretches: list[Stretch]) -> list[Stretch]:
    """Stretches with each series of preemptions between which no token was given as a single one.

    The series ends as the request resumes for the last time.
    """
    shown: list[Stretch] = []
    for thrashes, series in groupby(stretches, _gives_nothing):
        part = list(series)
        places = [place for place, one in enumerate(part) if one.kind == PREEMPTED]
        if not thrashes or len(places) < 2:
            shown += part
            continue
        first, last = places[0], places[-1]
        shown += [*part[:first], _thrash(part[first : last + 1]), *part[last + 1 :]]
    return shown


def _gives_nothing(stretch: Stretch) -> bool:
    return stretch.kind in IN_THRASH and not stretch.facts.get("sampled")


def _thrash(series: list[Stretch]) -> Stretch:
    first, last = series[0], series[-1]
    losses = [one.facts for one in series if one.kind == PREEMPTED]
    others = dict.fromkeys(name for loss in losses for name in loss["for_requests"])
    facts = {
        "preemptions": len(losses),
        "in_prefill": all(loss["in_prefill"] for loss in losses),
        "reserves_all": losses[0]["reserves_all"],
        "tokens": sum(one.facts.get("tokens", 0) for one in series if one.kind == RECOMPUTED),
        "new_tokens": sum(one.facts.get("tokens", 0) for one in series if one.kind == PREFILLED),
        "most_tokens": max(loss["tokens"] for loss in losses),
        "for_requests": [*others],
    }
    steps = _span(first.steps, last.steps)
    spent = why.total(one.causes for one in series)
    return Stretch(first.request_id, THRASHED, first.start_s, last.end_s, steps, facts, spent)


def _span(first: tuple[int, int] | None, second: tuple[int, int] | None) -> tuple[int, int] | None:
    if first is None or second is None:
        return first or second
    return first[0], second[1]


def seconds_by_cause(stretches: list[Stretch]) -> dict[str, float]:
    """The seconds of each cause that occurs, in the order of `causes.MEANINGS`."""
    return why.total(stretch.causes for stretch in stretches)


def seconds_by_kind(stretches: list[Stretch]) -> dict[str, float]:
    """The seconds of each kind that occurs, in the order of KINDS."""
    kinds = np.array([stretch.kind for stretch in stretches])
    seconds = np.array([stretch.duration_s for stretch in stretches])
    return {kind: float(seconds[kinds == kind].sum()) for kind in KINDS if (kinds == kind).any()}
