"""From what was noted while vLLM ran (`engine.recording`) to the tables of one repeat."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from kvscope import tables
from kvscope.engine.recording import PassRecord, PreemptionRecord, Recording

NANOSECONDS = 1e-9


@dataclass(frozen=True)
class RepeatContext:
    """What the tables of a repeat need beside its recording."""

    repeat: int
    origin_ns: int  # start of the repeat, host monotonic clock
    kv_blocks_total: int
    block_size: int
    policy: str
    time_source: str

    def seconds(self, time_ns: int) -> float:
        """An instant of the host's clock as seconds since the repeat's start."""
        return (time_ns - self.origin_ns) * NANOSECONDS


@dataclass
class RequestState:
    """What is known of one request while its passes are replayed."""

    prompt_tokens: int = 0
    resident_tokens: int = 0  # tokens whose K and V are in the cache
    sampled_tokens: int = 0
    preemptions: int = 0
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    preempted: PreemptionRecord | None = None  # set until it is scheduled again
    recovering: bool = False  # set from a preemption until it gives a token again


@dataclass
class Repeat:
    """The tables of one repeat, as data frames, and the state its requests ended in."""

    steps: pd.DataFrame
    batch: pd.DataFrame
    preemptions: pd.DataFrame
    layers: pd.DataFrame
    requests: dict[str, RequestState] = field(default_factory=dict)


def external_id(internal_id: str) -> str:
    """The workload's request id: vLLM appends '-' and random characters to it."""
    return internal_id.rsplit("-", 1)[0]


class Replay:
    """Replays a recording pass by pass and writes down the rows of its tables."""

    def __init__(self, context: RepeatContext) -> None:
        self.context = context
        self.requests: dict[str, RequestState] = {}
        self.steps: list[dict[str, Any]] = []
        self.batch: list[tuple[Any, ...]] = []
        self.preemptions: list[dict[str, Any]] = []

    def preempt(self, record: PreemptionRecord) -> None:
        """A request loses its blocks."""
        request_id = external_id(record.request_id)
        state = self.requests.setdefault(request_id, RequestState())
        state.preempted, state.recovering = record, True
        state.preemptions += 1
        state.resident_tokens = 0
        self._preemption_row(record.step, request_id, "preempt", record.blocks, record.tokens)

    def forward_pass(self, step: int, record: PassRecord, preempted: int) -> None:
        """One pass: a row of `steps` and a row of `batch` for each of its requests."""
        seconds = self.context.seconds
        for internal_id in record.finished_before:
            # The first pass also hears of the requests that ended the repeat before.
            if (state := self.requests.get(external_id(internal_id))) is not None:
                state.resident_tokens = 0
        rows = [self._batch_row(step, record, *row) for row in scheduled_rows(record)]
        prefill = sum(row[4] for row in rows if row[3] == "prefill")
        scheduled = sum(row[4] for row in rows)
        self.steps.append(
            {
                "repeat": self.context.repeat,
                "step": step,
                "phase": phase_of(prefill, scheduled - prefill),
                "start_s": seconds(record.schedule_start_ns),
                "duration_s": (record.end_ns - record.schedule_start_ns) * NANOSECONDS,
                "schedule_s": (record.schedule_end_ns - record.schedule_start_ns) * NANOSECONDS,
                "forward_s": (record.output_ns - record.schedule_end_ns) * NANOSECONDS,
                "scheduled_tokens": scheduled,
                "prefill_tokens": prefill,
                "decode_tokens": scheduled - prefill,
                "sampled_tokens": sum(row[6] for row in rows),
                "requests": len(rows),
                "resumed_requests": sum(row[7] for row in rows),
                "preempted_requests": preempted,
                "waiting_requests": record.waiting,
                "kv_blocks_used": record.kv_blocks_used,
                "kv_blocks_total": self.context.kv_blocks_total,
                "kv_tokens_used": sum(r.resident_tokens for r in self.requests.values()),
                "host_blocks_used": 0,
                "host_blocks_total": 0,
                "stalled": False,
                "time_source": self.context.time_source,
            }
        )
        self.batch.extend(rows)

    def _batch_row(
        self, step: int, record: PassRecord, internal_id: str, tokens: int, context: int, given: int
    ) -> tuple[Any, ...]:
        request_id = external_id(internal_id)
        state = self.requests.setdefault(request_id, RequestState())
        if state.first_scheduled_s is None:
            state.first_scheduled_s = self.context.seconds(record.schedule_start_ns)
        if state.preempted is not None:
            self._resume(step, record, request_id, state, context, tokens)
        resumed = state.recovering
        # A pass decodes a request if all but its newest token is in the cache and was all along.
        decodes = state.sampled_tokens > 0 and tokens == 1 and not resumed
        state.resident_tokens = context + tokens
        if given:
            state.sampled_tokens += given
            state.recovering = False
            state.finished_s = self.context.seconds(record.end_ns)
            if state.first_token_s is None:
                state.first_token_s = state.finished_s
        phase = "decode" if decodes else "prefill"
        return (self.context.repeat, step, request_id, phase, tokens, context, given, resumed)

    def _resume(
        self,
        step: int,
        record: PassRecord,
        request_id: str,
        state: RequestState,
        context: int,
        tokens: int,
    ) -> None:
        lost = state.preempted
        assert lost is not None
        state.preempted = None
        self._preemption_row(
            step,
            request_id,
            "resume",
            -(-(context + tokens) // self.context.block_size),
            lost.tokens,
            wait_s=(record.schedule_start_ns - lost.time_ns) * NANOSECONDS,
            recomputed_tokens=lost.tokens - context,
        )

    def _preemption_row(
        self, step: int, request_id: str, event: str, blocks: int, tokens: int, **more: Any
    ) -> None:
        self.preemptions.append(
            {
                "repeat": self.context.repeat,
                "step": step,
                "request_id": request_id,
                "event": event,
                "policy": self.context.policy,
                "blocks": blocks,
                "tokens": tokens,
                "bytes": 0,
                "swap_out_s": None,
                "swap_in_s": None,
                "wait_s": None,
                "recomputed_tokens": None,
                "time_source": self.context.time_source,
            }
            | more
        )


def phase_of(prefill_tokens: int, decode_tokens: int) -> str:
    """'prefill', 'decode' or 'mixed', by what a pass computes."""
    if not decode_tokens:
        return "prefill"
    return "mixed" if prefill_tokens else "decode"


def scheduled_rows(record: PassRecord) -> Iterator[tuple[str, int, int, int]]:
    """(internal id, tokens computed, tokens in the cache before, tokens given) of each request."""
    scheduled, output = record.scheduled, record.output
    cached = scheduled.scheduled_cached_reqs
    context = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    context.update({new.req_id: new.num_computed_tokens for new in scheduled.scheduled_new_reqs})
    for internal_id, tokens in scheduled.num_scheduled_tokens.items():
        given = output.sampled_token_ids[output.req_id_to_index[internal_id]]
        yield internal_id, tokens, context[internal_id], len(given)


def replay(recording: Recording, context: RepeatContext) -> Repeat:
    """The tables of one repeat from its recording."""
    state = Replay(context)
    preemptions = iter([*recording.preemptions, None])
    upcoming = next(preemptions)
    for step, record in enumerate(recording.passes):
        preempted = 0
        while upcoming is not None and upcoming.step <= step:
            state.preempt(upcoming)
            preempted += 1
            upcoming = next(preemptions)
        state.forward_pass(step, record, preempted)
    return Repeat(
        steps=_frame(tables.STEPS, state.steps),
        batch=_frame(tables.BATCH, state.batch),
        preemptions=_frame(tables.PREEMPTIONS, state.preemptions),
        layers=layers_of(recording, context),
        requests=state.requests,
    )


def layers_of(recording: Recording, context: RepeatContext) -> pd.DataFrame:
    """The `layers` table of one repeat."""
    step, layer, start_ns, end_ns = np.array(recording.layers, dtype=np.int64).reshape(-1, 4).T
    frame = pd.DataFrame(
        {
            "repeat": context.repeat,
            "step": step,
            "layer": layer,
            "start_s": (start_ns - context.origin_ns) * NANOSECONDS,
            "duration_s": (end_ns - start_ns) * NANOSECONDS,
        }
    )
    typed: pd.DataFrame = tables.to_arrow(tables.LAYERS, frame).to_pandas()
    return typed


def _frame(table: tables.Table, rows: Sequence[Any]) -> pd.DataFrame:
    frame = pd.DataFrame(list(rows), columns=table.names)
    typed: pd.DataFrame = tables.to_arrow(table, frame).to_pandas()
    return typed
