"""The rows that a replay computes, with the columns that it knows of each table.

A value may be a pair: then the stored one is due to be between the two.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from kvscope.judge.twin.pool import Evicted
from kvscope.judge.twin.requests import Request
from kvscope.judge.twin.rules import Rules
from kvscope.judge.twin.told import Known, Scheduled, Told, Victim

PREFILL, DECODE, MIXED = "prefill", "decode", "mixed"
PREEMPT, RESUME = "preempt", "resume"

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "requests": (
        *("request_id", "arrival_s", "prompt_tokens", "output_tokens", "aborted"),
        *("first_scheduled_s", "first_token_s", "finished_s", "preemptions"),
        *("conversation", "turn"),
    ),
    "steps": (
        *("step", "phase", "scheduled_tokens", "prefill_tokens", "decode_tokens"),
        *("recomputed_tokens", "sampled_tokens", "requests", "resumed_requests"),
        *("preempted_requests", "waiting_requests", "kv_blocks_used", "kv_blocks_total"),
        *("kv_tokens_used", "host_blocks_used", "host_blocks_total"),
        *("group_blocks_used", "kv_bytes_used"),
    ),
    "batch": (
        *("step", "request_id", "phase", "scheduled_tokens", "recomputed_tokens"),
        *("context_tokens", "sampled_tokens", "resumed", "saved_tokens", "hit_tokens"),
        *("own_hit_tokens", "loaded_tokens"),
    ),
    "preemptions": (
        *("step", "request_id", "event", "time_s", "policy", "refused", "blocks"),
        *("shared_blocks", "tokens", "scheduled_tokens", "group_blocks", "kv_bytes"),
        *("hit_tokens", "own_hit_tokens", "wait_s", "recomputed_tokens", "predicted_s"),
        "cost_s",
    ),
    "transfers": ("step", "request_id", "direction", "kind", "blocks", "bytes"),
    "hits": (
        *("step", "request_id", "block_position", "block", "owner", "cached_step"),
        *("resumed", "in_use"),
    ),
    "evictions": (
        *("step", "owner", "block_position", "cached_step", "request_id", "block", "age_s"),
        "hits",
    ),
}
KEYS: Mapping[str, int] = {
    "requests": 1,
    "steps": 1,
    "batch": 2,
    "preemptions": 3,
    "transfers": 4,
    "hits": 3,
    "evictions": 4,
}
"""Number of the first columns that name a row."""
_COST = COLUMNS["preemptions"].index("cost_s")


class Replayed(Protocol):
    """State of a replay that rows are made from (`twin.Twin`)."""

    rules: Rules
    told: Told
    step: int

    @property
    def away(self) -> int:
        """Requests that do not wait."""

    @property
    def used_by_group(self) -> list[int]:
        """Blocks of each KV group that requests hold."""

    @property
    def tokens_used(self) -> tuple[int, int]:
        """Tokens in the cache, at least and at most."""

    @property
    def host_used(self) -> tuple[int, int]:
        """Blocks of the host in use, at least and at most."""


class Rows:
    """The rows of each table in the order in which they are due, as COLUMNS."""

    def __init__(self) -> None:
        self.of: dict[str, list[tuple[Any, ...]]] = {name: [] for name in COLUMNS}
        self._costs: dict[int, float] = defaultdict(float)
        self._totals = [0] * 5

    def finished(self) -> Mapping[str, Sequence[tuple[Any, ...]]]:
        """All rows, with what each resumption has cost."""
        rows = self.of["preemptions"]
        for place, seconds in self._costs.items():
            row = rows[place]
            rows[place] = (*row[:_COST], row[_COST] + seconds)
        self._costs.clear()
        return self.of

    def add_cost(self, place: int, seconds: float) -> None:
        """A resumption has cost so many seconds more."""
        self._costs[place] += seconds

    # ------------------------------------------------------------------ passes

    def compute(
        self,
        twin: Replayed,
        request: Request,
        row: Scheduled,
        saved: int,
        again: int,
        sampled: int,
        decodes: bool,
    ) -> None:
        """Add the row of a request in a pass, and the rows of its hits and its resumption."""
        step, hit, own_tokens, loaded = twin.step, request.hit, 0, request.loaded
        if request.found:
            own_tokens = sum(content[0] == request.id for _, content, _ in request.found)
            own_tokens *= twin.rules.block_size
            self._find(step, request)
        if request.lost is not None:
            self._resume(twin, request, row.tokens, own_tokens)
        request.hit = request.loaded = 0
        tokens = row.tokens
        self._totals[0] += tokens
        self._totals[1] += tokens * decodes
        self._totals[2] += again
        self._totals[3] += sampled
        self._totals[4] += request.recovering
        computed = step, request.id, DECODE if decodes else PREFILL, tokens, again
        state = request.tokens, sampled, request.recovering, saved, hit, own_tokens, loaded
        self.of["batch"].append(computed + state)

    def _find(self, step: int, request: Request) -> None:
        resumed = request.lost is not None
        for place, (serial, (owner, _, since), in_use) in enumerate(request.found):
            row = (step, request.id, place, serial, owner, since, resumed, in_use)
            self.of["hits"].append(row)
        request.found = []

    def report(self, twin: Replayed, rows: Sequence[Scheduled]) -> None:
        """The row of a pass."""
        step, rules, told = twin.step, twin.rules, twin.told
        (tokens, decode, again, sampled, recovering), self._totals = self._totals, [0] * 5
        before, until = told.arrived[step]
        used = twin.used_by_group
        prefill = tokens - decode
        phase = (MIXED if prefill else DECODE) if decode else PREFILL
        self.of["steps"].append(
            (
                *(step, phase, tokens, prefill, decode, again, sampled, len(rows), recovering),
                len(told.victims.get(step, ())),
                (before - twin.away, until - twin.away),
                *(sum(used), rules.kv_blocks_total, twin.tokens_used),
                *(twin.host_used, rules.host_blocks_total),
                *(list(used) if rules.by_group else None, rules.useful_bytes(used)),
            )
        )

    # ------------------------------------------------------------------ preemptions

    def preempt(
        self,
        twin: Replayed,
        request: Request,
        victim: Victim,
        done: str,
        refused: bool,
        held: list[int],
        shared: int,
    ) -> None:
        """The row of a preemption."""
        rules = twin.rules
        self.of["preemptions"].append(
            (
                *(twin.step, request.id, PREEMPT, victim.time_s, done, refused, sum(held)),
                *(shared, request.tokens, victim.scheduled_tokens),
                *(held if rules.by_group else None, rules.useful_bytes(held)),
                *(None, None, None, None, victim.predicted_s, None),
            )
        )

    def _resume(self, twin: Replayed, request: Request, tokens: int, own: int) -> None:
        lost, context, told = request.lost, request.tokens, twin.told
        assert lost is not None
        start_s, step = told.starts_s[twin.step], twin.step
        blocks = sum(twin.rules.held_blocks(context, context + tokens))
        back_s = told.copied_s.get((step, request.id, "in"), 0.0)
        back_s += told.loaded_s(request.id, lost.step, step)
        request.cost_row = len(self.of["preemptions"])
        request.lost = None
        self.of["preemptions"].append(
            (
                *(step, request.id, RESUME, start_s, lost.action, lost.refused, blocks),
                *(None, lost.tokens, None, None, None, request.hit, own),
                *(start_s - lost.victim.time_s, max(0, lost.tokens - context)),
                *(lost.victim.predicted_s, request.copied_s + back_s),
            )
        )

    # ------------------------------------------------------------------ copies and evictions

    def copy(self, step: int, copies: Iterable[tuple[str | None, str, str, int, int]]) -> None:
        """The rows of the copies of a pass."""
        self.of["transfers"].extend((step, *copy) for copy in copies)

    def evict(
        self, step: int, evicted: Iterable[tuple[str, Evicted]], starts_s: Sequence[float]
    ) -> None:
        """Add the rows of the blocks that a pass has evicted."""
        self.of["evictions"].extend(
            (step, *content, request_id, serial, starts_s[step] - starts_s[content[2]], hits)
            for request_id, (serial, content, hits) in evicted
        )

    # ------------------------------------------------------------------ requests

    def outcome(self, request: Request, known: Known, aborted_s: Mapping[str, float]) -> None:
        """The row of a request."""
        self.of["requests"].append(
            (
                request.id,
                known.arrival_s if known.due_s is None else known.due_s,
                *(request.prompt, request.given, request.given < request.due),
                *(request.first_s, request.token_s),
                aborted_s.get(request.id, request.last_s),
                *(request.preemptions, known.conversation, known.turn),
            )
        )
