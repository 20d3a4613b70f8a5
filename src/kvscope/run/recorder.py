"""Converts the raw records of a repeat (`engine.recording`) to its tables."""

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from kvscope import tables
from kvscope.engine.recording import PassRecord, PreemptionRecord, Recording
from kvscope.passes import DECODE, PREFILL, phase_of_tokens

if TYPE_CHECKING:
    from kvscope.engine.overflow.copies import Transfer

NANOSECONDS = 1e-9


@dataclass(frozen=True)
class RepeatContext:
    """The facts that the tables of a repeat need beside its recording."""

    repeat: int
    origin_ns: int  # start of the repeat, host monotonic clock
    kv_blocks_total: int
    host_blocks_total: int
    block_size: int
    time_source: str

    def seconds(self, time_ns: int) -> float:
        """An instant of the host's clock as seconds since the repeat's start."""
        return (time_ns - self.origin_ns) * NANOSECONDS


@dataclass
class RequestState:
    """The state of one request while its passes are replayed."""

    resident_tokens: int = 0  # tokens whose K and V are in the cache
    computed_tokens: int = 0  # tokens that were ever computed
    given: list[int] = field(default_factory=list)  # its output token ids
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    preempted: PreemptionRecord | None = None  # set until it is scheduled again
    recovering: bool = False  # set from a preemption until it gives a token again
    copied_out_s: float = 0.0  # for its last preemption
    resumption: dict[str, Any] = field(default_factory=dict)  # the row of its last one


@dataclass
class RepeatTables:
    """The tables of one repeat as DataFrames, and the final state of its requests."""

    steps: pd.DataFrame
    batch: pd.DataFrame
    preemptions: pd.DataFrame
    layers: pd.DataFrame
    requests: dict[str, RequestState] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)  # preemptions by request, as vLLM counts

    def state(self, request_id: str) -> RequestState:
        """The final state of a request; an empty one if it was never scheduled."""
        return self.requests.get(request_id, RequestState())


@lru_cache(4096)
def external_id(internal_id: str) -> str:
    """The workload's request id: vLLM appends '-' and random characters to it."""
    return internal_id.rsplit("-", 1)[0]


class Replay:
    """Replays a recording pass by pass and collects the rows of its tables."""

    def __init__(self, context: RepeatContext) -> None:
        self.context = context
        self.requests: dict[str, RequestState] = {}
        self.resident_tokens = 0  # of all requests
        self.steps: list[dict[str, Any]] = []
        self.batch: list[dict[str, Any]] = []
        self.preemptions: list[dict[str, Any]] = []
        self._transfers: dict[tuple[str, str], deque[Transfer]] = defaultdict(deque)
        self._saves: deque[Transfer] = deque()

    def add_transfers(self, transfers: "Sequence[Transfer]") -> None:
        """Add the copies of the repeat, in order.

        Each belongs to one preemption or resumption; those of direction 'save' to a pass.
        """
        for transfer in transfers:
            if transfer.direction == "save":
                self._saves.append(transfer)
                continue
            self._transfers[external_id(transfer.request_id), transfer.direction].append(transfer)

    def preempt(self, record: PreemptionRecord) -> None:
        """Add the row of a preemption."""
        request_id = external_id(record.request_id)
        state = self.requests.setdefault(request_id, RequestState())
        state.preempted, state.recovering = record, True
        self._keep(state, 0)
        row = self._preemption_row(
            record.step, request_id, "preempt", record, record.time_ns, record.blocks
        )
        state.copied_out_s = row["swap_out_s"] or 0.0

    def forward_pass(self, step: int, record: PassRecord) -> None:
        """Add the row of `steps` of a pass, and the row of `batch` of each of its requests."""
        seconds = self.context.seconds
        for internal_id in record.finished_before:
            # The first pass also lists the requests that ended in the previous repeat.
            if (state := self.requests.get(external_id(internal_id))) is not None:
                self._keep(state, 0)
        saved = self._save_of(record)
        rows = [self._batch_row(step, record, *row) for row in scheduled_rows(record)]
        scheduled = sum(row["scheduled_tokens"] for row in rows)
        prefill = sum(row["scheduled_tokens"] for row in rows if row["phase"] == PREFILL)
        self.steps.append(
            {
                "repeat": self.context.repeat,
                "step": step,
                "phase": phase_of_tokens(prefill, scheduled - prefill),
                "start_s": seconds(record.schedule_start_ns),
                "duration_s": (record.end_ns - record.schedule_start_ns) * NANOSECONDS,
                "schedule_s": (record.schedule_end_ns - record.schedule_start_ns) * NANOSECONDS,
                "forward_s": (record.output_ns - record.schedule_end_ns) * NANOSECONDS,
                "scheduled_tokens": scheduled,
                "prefill_tokens": prefill,
                "decode_tokens": scheduled - prefill,
                "recomputed_tokens": sum(row["recomputed_tokens"] for row in rows),
                "sampled_tokens": sum(row["sampled_tokens"] for row in rows),
                "requests": len(rows),
                "resumed_requests": sum(row["resumed"] for row in rows),
                "preempted_requests": record.preempted,
                "waiting_requests": record.waiting,
                "kv_blocks_used": self.context.kv_blocks_total - record.kv_blocks_free,
                "kv_blocks_total": self.context.kv_blocks_total,
                "kv_tokens_used": self.resident_tokens,
                "host_blocks_used": record.host_blocks_used,
                "host_blocks_total": self.context.host_blocks_total,
                "saved_bytes": saved.bytes if saved else 0,
                "save_s": saved.seconds() if saved else None,
                "stalled": False,
                "time_source": self.context.time_source,
            }
        )
        self.batch.extend(rows)

    def _keep(self, state: RequestState, tokens: int) -> None:
        """A request has so many tokens in the cache from now on."""
        self.resident_tokens += tokens - state.resident_tokens
        state.resident_tokens = tokens

    def _save_of(self, record: PassRecord) -> "Transfer | None":
        """What was written through after a pass; None if nothing was."""
        if not self._saves or self._saves[0].start_ns > record.end_ns:
            return None
        return self._saves.popleft()

    def _batch_row(
        self,
        step: int,
        record: PassRecord,
        internal_id: str,
        tokens: int,
        context: int,
        given: list[int],
    ) -> dict[str, Any]:
        request_id = external_id(internal_id)
        state = self.requests.setdefault(request_id, RequestState())
        if state.first_scheduled_s is None:
            state.first_scheduled_s = self.context.seconds(record.schedule_start_ns)
        if state.preempted is not None:
            self._resume(step, record, request_id, state, context, tokens)
        resumed = state.recovering
        recomputed = max(0, min(state.computed_tokens, context + tokens) - context)
        # A request decodes where it computes its newest token and nothing else.
        decodes = bool(state.given) and tokens == 1 and not recomputed
        if recomputed and state.resumption:
            forward_s = (record.output_ns - record.schedule_end_ns) * NANOSECONDS
            share = recomputed / sum(record.scheduled.num_scheduled_tokens.values())
            state.resumption["cost_s"] += forward_s * share
        self._keep(state, context + tokens)
        state.computed_tokens = max(state.computed_tokens, state.resident_tokens)
        if given:
            state.given += given
            state.recovering = False
            state.finished_s = self.context.seconds(record.end_ns)
            if state.first_token_s is None:
                state.first_token_s = state.finished_s
        return {
            "repeat": self.context.repeat,
            "step": step,
            "request_id": request_id,
            "phase": DECODE if decodes else PREFILL,
            "scheduled_tokens": tokens,
            "recomputed_tokens": recomputed,
            "context_tokens": context,
            "sampled_tokens": len(given),
            "resumed": resumed,
            "saved_tokens": saved_tokens(record).get(internal_id, 0),
        }

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
        row = state.resumption = self._preemption_row(
            step,
            request_id,
            "resume",
            lost,
            record.schedule_start_ns,
            blocks=-(-(context + tokens) // self.context.block_size),
            wait_s=(record.schedule_start_ns - lost.time_ns) * NANOSECONDS,
            recomputed_tokens=lost.tokens - context,
        )
        back_s = (row["swap_in_s"] or 0.0) + (row["rebuild_s"] or 0.0)
        row["cost_s"] = state.copied_out_s + back_s

    def _preemption_row(
        self,
        step: int,
        request_id: str,
        event: str,
        record: PreemptionRecord,
        time_ns: int,
        blocks: int,
        **more: Any,
    ) -> dict[str, Any]:
        direction = "out" if event == "preempt" else "in"
        action = record.action
        copied = action.copies or (action.rebuilds and direction == "in")
        transfer = self._transfers[request_id, direction].popleft() if copied else None
        took_s = transfer.seconds() if transfer else None
        rebuilt = transfer.rebuild_seconds if transfer else None
        seconds = self.context.seconds
        self.preemptions.append(
            {
                "repeat": self.context.repeat,
                "step": step,
                "request_id": request_id,
                "event": event,
                "time_s": seconds(time_ns),
                "policy": record.action.name,
                "refused": record.refused,
                "blocks": blocks,
                "tokens": record.tokens,
                "bytes": transfer.bytes if transfer else 0,
                "swap_out_s": took_s if direction == "out" else None,
                "swap_in_s": took_s if direction == "in" else None,
                "rebuild_s": rebuilt() if rebuilt else None,
                "copy_start_s": seconds(transfer.start_ns) if transfer else None,
                "copy_end_s": seconds(transfer.end_ns) if transfer else None,
                "wait_s": None,
                "recomputed_tokens": None,
                "predicted_s": record.predicted_s,
                "cost_s": None,
                "time_source": self.context.time_source,
            }
            | more
        )
        return self.preemptions[-1]


def scheduled_rows(record: PassRecord) -> Iterator[tuple[str, int, int, list[int]]]:
    """For each request: internal id, tokens computed, context tokens, sampled token ids."""
    scheduled, output = record.scheduled, record.output
    cached = scheduled.scheduled_cached_reqs
    context = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    context.update({new.req_id: new.num_computed_tokens for new in scheduled.scheduled_new_reqs})
    for internal_id, tokens in scheduled.num_scheduled_tokens.items():
        given = output.sampled_token_ids[output.req_id_to_index[internal_id]]
        yield internal_id, tokens, context[internal_id], list(given)


def saved_tokens(record: PassRecord) -> Mapping[str, int]:
    """Tokens of requests, by internal id, whose activations the pass was to write through."""
    found: Mapping[str, int] = getattr(record.scheduled.kv_connector_metadata, "saved_tokens", {})
    return found


def replay(recording: Recording, context: RepeatContext) -> RepeatTables:
    """The tables of one repeat from its recording."""
    state = Replay(context)
    state.add_transfers(recording.transfers)
    preemptions = iter([*recording.preemptions, None])
    upcoming = next(preemptions)
    for step, record in enumerate(recording.passes):
        while upcoming is not None and upcoming.step <= step:
            state.preempt(upcoming)
            upcoming = next(preemptions)
        state.forward_pass(step, record)
    return RepeatTables(
        steps=_frame(tables.STEPS, state.steps),
        batch=_frame(tables.BATCH, state.batch),
        preemptions=_frame(tables.PREEMPTIONS, state.preemptions),
        layers=layers_table(recording, context),
        requests=state.requests,
        counted={external_id(name): count for name, count in recording.counted.items()},
    )


def layers_table(recording: Recording, context: RepeatContext) -> pd.DataFrame:
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
