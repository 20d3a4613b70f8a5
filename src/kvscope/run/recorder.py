"""Converts the raw records of a repeat (`engine.recording`) to its tables."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa

from kvscope import tables
from kvscope.engine.recording import (
    BlockEviction,
    BlockHit,
    CachedBlock,
    Job,
    PassRecord,
    PreemptionRecord,
    Recording,
    ScheduledRequest,
    Transfer,
)
from kvscope.run.sharing import BlockContent, Holders
from kvscope.tables.copies import IN, OUT
from kvscope.tables.jobs import JOBS
from kvscope.tables.kv_group import KvGroup
from kvscope.tables.kv_plan import has_one_block_table, held_blocks
from kvscope.tables.phases import DECODE, PREFILL, phase_of_tokens
from kvscope.tables.run_data import with_jobs

NANOSECONDS = 1e-9
RECORDED = (
    *(tables.STEPS, tables.BATCH, tables.PREEMPTIONS, tables.TRANSFERS),
    *(tables.HITS, tables.EVICTIONS, tables.LAYERS),
)
"""The tables that a recording becomes, but for its jobs."""


@dataclass(frozen=True)
class RepeatContext:
    """The facts that the tables of a repeat need beside its recording."""

    repeat: int
    origin_ns: int  # start of the repeat, host monotonic clock
    kv_blocks_total: int
    host_blocks_total: int
    block_size: int
    time_source: str
    kv_groups: tuple[KvGroup, ...] = ()  # empty where they are not known

    def kv_bytes(self, blocks: int, group_blocks: tuple[int, ...]) -> int | None:
        """Bytes of so many blocks without padding; None if those of each group are not known."""
        if not self.kv_groups or len(group_blocks or (blocks,)) != len(self.kv_groups):
            return None
        groups = zip(group_blocks or (blocks,), self.kv_groups, strict=True)
        return sum(count * group.useful_bytes for count, group in groups)

    def held_blocks(self, context_tokens: int, tokens: int) -> int:
        """Blocks of a request in a pass that has room for so many tokens."""
        if not self.kv_groups or has_one_block_table(self.kv_groups):
            return -(-tokens // self.block_size)
        context, room = np.array(context_tokens), np.array(tokens)
        return int(sum(held_blocks(group, context, room) for group in self.kv_groups))

    def seconds(self, time_ns: int) -> float:
        """An instant of the host's clock as seconds since the repeat's start."""
        return (time_ns - self.origin_ns) * NANOSECONDS

    def known_seconds(self, time_ns: int | None) -> float | None:
        """Seconds of an instant that may be unknown."""
        return None if time_ns is None else self.seconds(time_ns)


@dataclass(slots=True)
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
    copied_s: float = 0.0  # by copies and rebuilding since its last preemption
    resumption: dict[str, Any] = field(default_factory=dict)  # the row of its last one


@dataclass
class RepeatTables:
    """The tables of one repeat as DataFrames, and the final state of its requests."""

    steps: pd.DataFrame
    batch: pd.DataFrame
    preemptions: pd.DataFrame
    transfers: pd.DataFrame
    hits: pd.DataFrame
    evictions: pd.DataFrame
    layers: pd.DataFrame
    requests: dict[str, RequestState] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)  # preemptions, as the scheduler counts
    jobs: pd.DataFrame = field(default_factory=JOBS.empty)  # of whichever package has them
    added: dict[str, pd.DataFrame] = field(default_factory=dict)  # tables of other packages

    @property
    def copies(self) -> pd.DataFrame:
        """All copies, in the columns of `transfers`."""
        return with_jobs(self.transfers, self.jobs)

    def state(self, request_id: str) -> RequestState:
        """The final state of a request; an empty one if it was never scheduled."""
        return self.requests.get(request_id, RequestState())


BATCH_COLUMNS = (
    *("repeat", "step", "request_id", "phase", "scheduled_tokens", "recomputed_tokens"),
    *("context_tokens", "sampled_tokens", "resumed", "saved_tokens", "hit_tokens"),
    *("own_hit_tokens", "loaded_tokens"),
)
_COUNTED = tuple(name for name in tables.BATCH.names if name not in BATCH_COLUMNS)
_NO_COUNTS = (None,) * len(_COUNTED)
_AT_ONCE = 1 << 14
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


class Rows:
    """Rows of a table, kept as columns: millions of objects would fill the memory."""

    def __init__(self, table: tables.Table, names: Sequence[str]) -> None:
        """Rows have the values of the columns of these names, which are all of the table's."""
        self._schema = table.schema
        self._order = [names.index(name) for name in table.names]
        self._newest: list[list[Any]] = [[] for _ in names]
        self._kept = pa.BufferOutputStream()
        self._writer = pa.ipc.new_stream(self._kept, self._schema, options=_COMPRESSED)

    def extend(self, columns: Iterable[Iterable[Any]]) -> None:
        """Add rows, given by their columns."""
        for column, values in zip(self._newest, columns, strict=False):
            column.extend(values)
        if len(self._newest[0]) >= _AT_ONCE:
            self._keep()

    def append(self, *values: Any) -> None:
        """Add a row."""
        for column, value in zip(self._newest, values, strict=True):
            column.append(value)
        if len(self._newest[0]) >= _AT_ONCE:
            self._keep()

    def _keep(self) -> None:
        columns = [
            pa.array(self._newest[place], field.type, from_pandas=True)
            for place, field in zip(self._order, self._schema, strict=True)
        ]
        self._writer.write_batch(pa.record_batch(columns, schema=self._schema))
        self._newest = [[] for _ in self._order]

    def batches(self, unknown: Collection[str] = ()) -> Iterator[pa.RecordBatch]:
        """All rows, a part after another; columns that are `unknown` are null."""
        self._keep()
        self._writer.close()
        for batch in pa.ipc.open_stream(self._kept.getvalue()):
            for name in unknown:
                place = self._schema.get_field_index(name)
                nulls = pa.nulls(len(batch), self._schema.field(place).type)
                batch = batch.set_column(place, self._schema.field(place), nulls)
            yield batch

    def frame(self) -> pd.DataFrame:
        """All rows."""
        frame: pd.DataFrame = pa.Table.from_batches(self.batches(), self._schema).to_pandas()
        return frame


class Replay:
    """Replays a recording pass by pass and collects the rows of its tables."""

    def __init__(self, context: RepeatContext, recording: Recording) -> None:
        self.context = context
        self.recording = recording
        self.requests: dict[str, RequestState] = {}
        self.resident_tokens = 0  # of all requests
        self.steps: list[dict[str, Any]] = []
        self.batch = Rows(tables.BATCH, (*BATCH_COLUMNS, *_COUNTED))
        self.preemptions: list[dict[str, Any]] = []
        self.transfers: list[dict[str, Any]] = []
        self.jobs: list[dict[str, Any]] = []
        self.hits = Rows(tables.HITS, (*_BLOCK_COLUMNS, "resumed", "in_use"))
        self.evictions = Rows(tables.EVICTIONS, (*_BLOCK_COLUMNS, "age_s", "hits"))
        self.holders = Holders()
        self.found: dict[str, list[BlockHit]] = {}  # by requests that are about to run

    def preempt(self, record: PreemptionRecord) -> None:
        """Add the row of a preemption."""
        state = self.requests.setdefault(record.request_id, RequestState())
        state.preempted, state.recovering, state.copied_s = record, True, 0.0
        self._release(record.request_id)
        self._add_preemption(
            record,
            "preempt",
            step=record.step,
            time_ns=record.time_ns,
            blocks=record.blocks,
            shared_blocks=record.shared,
            scheduled_tokens=record.scheduled,
            group_blocks=record.group_blocks or None,
            kv_bytes=self.context.kv_bytes(record.blocks, record.group_blocks),
        )

    def transfer(self, transfer: Transfer) -> None:
        """Add the row of a copy, before that of its pass."""
        context, copy_s = self.context, transfer.seconds()
        rebuild_s = transfer.rebuild_seconds() if transfer.rebuild_seconds else None
        job = transfer.job
        # A job that stores has tokens that are not lost.
        if transfer.request_id is not None and not (job and transfer.direction == OUT):
            state = self.requests.setdefault(transfer.request_id, RequestState())
            state.copied_s += copy_s + (rebuild_s or 0.0)
        row = {
            "repeat": context.repeat,
            "step": transfer.step,
            "request_id": transfer.request_id,
            "direction": transfer.direction,
            "kind": transfer.kind,
            "blocks": transfer.blocks,
            "bytes": transfer.bytes,
            "start_s": context.known_seconds(transfer.start_ns),
            "end_s": context.known_seconds(transfer.end_ns),
            "copy_s": copy_s,
            "clock": transfer.clock,
            "time_source": context.time_source,
        }
        if job is None:
            self.transfers.append(row | {"rebuild_s": rebuild_s})
        else:
            self.jobs.append(row | self._job_columns(job, transfer.direction))

    def _job_columns(self, job: Job, direction: str) -> dict[str, Any]:
        return {
            "job": job.number,
            "ordered_s": self.context.seconds(job.ordered_ns),
            "first_block": job.first_block,
            "loaded_blocks": job.loaded_blocks() if direction == OUT else None,
            "awaited_step": job.awaited_step,
            "arrived_step": job.arrived_step() if direction == IN else None,
        }

    def hit(self, hit: BlockHit) -> None:
        """Take a block that a request of the next pass found; its row is added with the
        request's."""
        self.found.setdefault(hit.request_id, []).append(hit)

    def evict(self, eviction: BlockEviction) -> None:
        """Add the row of an eviction, after that of its pass."""
        begin_s, cached_s = (
            self.steps[step]["start_s"] for step in (eviction.step, eviction.lost.step)
        )
        step, request_id, lost, hits = eviction
        ages = begin_s - cached_s, hits
        self.evictions.append(self.context.repeat, step, request_id, *_cached_block(lost), *ages)

    def forward_pass(self, step: int, record: PassRecord) -> None:
        """Add the row of `steps` of a pass, and the row of `batch` of each of its requests."""
        seconds = self.context.seconds
        for request_id in record.finished_before:
            # The first pass also lists the requests that ended in the previous repeat.
            if request_id in self.requests:
                self._release(request_id)
        batch = record.batch()
        scheduled = sum(row.computed for row in batch)
        times_s = seconds(record.schedule_start_ns), seconds(record.end_ns)
        rows = [self._batch_row(step, record, row, scheduled, *times_s) for row in batch]
        values = [*zip(*rows, strict=True)]
        columns = dict(zip(BATCH_COLUMNS, values, strict=False))
        phases = zip(columns.get("phase", ()), columns.get("scheduled_tokens", ()), strict=True)
        prefill = sum(tokens for phase, tokens in phases if phase == PREFILL)
        shared_tokens = self.holders.extra * self.context.block_size
        blocks_used = self.context.kv_blocks_total - record.kv_blocks_free
        self.steps.append(
            {
                "repeat": self.context.repeat,
                "step": step,
                "phase": phase_of_tokens(prefill, scheduled - prefill),
                "start_s": times_s[0],
                "duration_s": (record.end_ns - record.schedule_start_ns) * NANOSECONDS,
                "schedule_s": (record.schedule_end_ns - record.schedule_start_ns) * NANOSECONDS,
                "forward_s": (record.output_ns - record.schedule_end_ns) * NANOSECONDS,
                "scheduled_tokens": scheduled,
                "prefill_tokens": prefill,
                "decode_tokens": scheduled - prefill,
                "recomputed_tokens": sum(columns.get("recomputed_tokens", ())),
                "sampled_tokens": sum(columns.get("sampled_tokens", ())),
                "requests": len(rows),
                "resumed_requests": sum(columns.get("resumed", ())),
                "preempted_requests": record.preempted,
                "waiting_requests": record.waiting,
                "kv_blocks_used": blocks_used,
                "kv_blocks_total": self.context.kv_blocks_total,
                "kv_tokens_used": self.resident_tokens - shared_tokens,
                "host_blocks_used": record.host_blocks_used,
                "host_blocks_total": self.context.host_blocks_total,
                "stalled": False,
                "time_source": self.context.time_source,
                "load_wait_s": record.load_wait_ns * NANOSECONDS,
                "group_blocks_used": record.group_blocks or None,
                "kv_bytes_used": self.context.kv_bytes(blocks_used, record.group_blocks),
                "context_bytes": record.context_bytes,
            }
        )
        self.batch.extend(values)

    def _release(self, request_id: str) -> None:
        """Remove a request's tokens from the cache."""
        self._keep(self.requests[request_id], 0)
        self.holders.release(request_id)

    def _find(self, step: int, request_id: str, resumed: bool) -> int:
        """Add the rows of the blocks that a request found; returns how many were its own."""
        hits = self.found.pop(request_id, ())
        for hit in hits:
            block = hit.found
            content = BlockContent(block.owner, block.position, block.step)
            self.holders.find(request_id, content)
            place = self.context.repeat, step, request_id
            self.hits.append(*place, *_cached_block(block), resumed, hit.in_use)
        return sum(hit.found.owner == request_id for hit in hits)

    def _keep(self, state: RequestState, tokens: int) -> None:
        """Set the number of a request's tokens in the cache."""
        self.resident_tokens += tokens - state.resident_tokens
        state.resident_tokens = tokens

    def _batch_row(
        self,
        step: int,
        record: PassRecord,
        row: ScheduledRequest,
        scheduled_tokens: int,
        start_s: float,
        end_s: float,
    ) -> tuple[Any, ...]:
        """Values of BATCH_COLUMNS. Recordings have millions of such rows."""
        request_id, computed, cached, sampled, _, hit, loaded, saved, _, counts = row
        state = self.requests.get(request_id)
        if state is None:
            state = self.requests[request_id] = RequestState()
        tentative, accepted = _tentative(row) if counts else (0, 0)
        end_tokens = cached + computed - tentative + accepted
        if state.first_scheduled_s is None:
            state.first_scheduled_s = start_s
        if not state.resident_tokens:
            self.holders.admit(request_id, step)
        own_hit = 0
        if request_id in self.found:
            own_blocks = self._find(step, request_id, state.preempted is not None)
            own_hit = own_blocks * self.context.block_size
        if state.preempted is not None:
            self._resume(step, record, row, own_hit, state)
        resumed = state.recovering
        computed_tokens = state.computed_tokens
        recomputed = 0
        if computed_tokens > cached:
            recomputed = max(0, min(computed_tokens, end_tokens) - cached)
        # A request decodes if it computes only its newest token, and tentative tokens beyond it.
        decodes = bool(state.given) and computed - tentative == 1 and not recomputed
        if recomputed and state.resumption:
            forward_s = (record.output_ns - record.schedule_end_ns) * NANOSECONDS
            state.resumption["cost_s"] += forward_s * (recomputed / scheduled_tokens)
        self.resident_tokens += end_tokens - state.resident_tokens
        state.resident_tokens = end_tokens
        if end_tokens > computed_tokens:
            state.computed_tokens = end_tokens
        if sampled:
            state.given += sampled
            state.recovering = False
            state.finished_s = end_s
            if state.first_token_s is None:
                state.first_token_s = end_s
        phase = DECODE if decodes else PREFILL
        # fmt: off
        return (
            self.context.repeat, step, request_id, phase, computed, recomputed, cached,
            len(sampled), resumed, saved, hit, own_hit, loaded,
            *(map(counts.get, _COUNTED) if counts else _NO_COUNTS),
        )
        # fmt: on

    def _resume(
        self,
        step: int,
        record: PassRecord,
        row: ScheduledRequest,
        own_hit: int,
        state: RequestState,
    ) -> None:
        lost = state.preempted
        assert lost is not None
        state.preempted = None
        state.resumption = self._add_preemption(
            lost,
            "resume",
            step=step,
            time_ns=record.schedule_start_ns,
            blocks=self.context.held_blocks(row.cached, row.cached + row.computed),
            wait_s=(record.schedule_start_ns - lost.time_ns) * NANOSECONDS,
            hit_tokens=row.hit,
            own_hit_tokens=own_hit,
            recomputed_tokens=max(0, lost.tokens - row.cached),
            cost_s=state.copied_s,
        )

    def _add_preemption(
        self, record: PreemptionRecord, event: str, time_ns: int, **more: Any
    ) -> dict[str, Any]:
        self.preemptions.append(
            {
                "repeat": self.context.repeat,
                "request_id": record.request_id,
                "event": event,
                "time_s": self.context.seconds(time_ns),
                "policy": record.action.name,
                "refused": record.refused,
                "tokens": record.tokens,
                "predicted_s": record.predicted_s,
                "time_source": self.context.time_source,
            }
            | more
        )
        return self.preemptions[-1]

    def tables(self) -> RepeatTables:
        """The tables of the passes that were replayed."""
        return RepeatTables(
            steps=_frame(tables.STEPS, self.steps),
            batch=self.batch.frame(),
            preemptions=_frame(tables.PREEMPTIONS, self.preemptions),
            transfers=_frame(tables.TRANSFERS, self.transfers),
            hits=self.hits.frame(),
            evictions=self.evictions.frame(),
            layers=layers_table(self.recording, self.context),
            requests=self.requests,
            counted=dict(self.recording.counted),
            jobs=_frame(JOBS, self.jobs),
        )


class OfPass(Protocol):
    """A record of a pass."""

    @property
    def step(self) -> int:
        """The pass."""


RecordOfPass = TypeVar("RecordOfPass", bound=OfPass)


class Due(Generic[RecordOfPass]):
    """Records in the order of their passes, taken pass by pass."""

    def __init__(self, records: Iterable[RecordOfPass]) -> None:
        self._records = iter(records)
        self._next = next(self._records, None)

    def until(self, step: int) -> Iterator[RecordOfPass]:
        """The next records, up to those of a pass."""
        while (record := self._next) is not None and record.step <= step:
            self._next = next(self._records, None)
            yield record


def replay(
    recording: Recording,
    context: RepeatContext,
    began: Mapping[str, RequestState] | None = None,
) -> RepeatTables:
    """The tables of one repeat from its recording; `began`: requests that were there before."""
    return follow(recording, context, began).tables()


def follow(
    recording: Recording,
    context: RepeatContext,
    began: Mapping[str, RequestState] | None = None,
    blocks: tuple[Iterable[BlockHit], Iterable[BlockEviction]] | None = None,
) -> Replay:
    """The replay of all passes of a recording; `began`: requests that were there before.

    `blocks` are hits and evictions in the place of the recording's.
    """
    state = Replay(context, recording)
    state.requests |= began or {}
    state.resident_tokens = sum(request.resident_tokens for request in state.requests.values())
    preemptions = Due(recording.preemptions)
    # Jobs are reported when they have ended, and store what the last pass computed.
    last = len(recording.passes) - 1
    done = (replace(copy, step=min(copy.step, last)) for copy in recording.transfers)
    transfers = Due(sorted(done, key=lambda copy: copy.step))
    found, lost = blocks or (recording.hits, recording.evictions)
    hits, evictions = Due(found), Due(lost)
    for step, record in enumerate(recording.passes):
        for preemption in preemptions.until(step):
            state.preempt(preemption)
        for transfer in transfers.until(step):
            state.transfer(transfer)
        for hit in hits.until(step):
            state.hit(hit)
        state.forward_pass(step, record)
        for eviction in evictions.until(step):
            state.evict(eviction)
    return state


def _tentative(row: ScheduledRequest) -> tuple[int, int]:
    """The number of a request's tentative tokens in a pass, and of those of them that are kept.

    Of a request that ends with the pass, tokens behind its last one are not kept.
    """
    if not row.counts:
        return 0, 0
    columns = tables.BATCH.tentative
    accepted = sum(row.counts.get(column, 0) for _, column in columns)
    sampled = max(0, len(row.sampled) - 1)
    return sum(row.counts.get(column, 0) for column, _ in columns), min(accepted, sampled)


_BLOCK_COLUMNS = ("repeat", "step", "request_id", "block", "block_position", "owner", "cached_step")


def _cached_block(block: CachedBlock) -> tuple[int, int, str, int]:
    """The last of _BLOCK_COLUMNS, of a block that is or was in the prefix cache."""
    return block.block, block.position, block.owner, block.step


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


def kv_groups_table(groups: Sequence[KvGroup]) -> pd.DataFrame:
    """The `kv_groups` table of an engine with these groups."""
    return _frame(
        tables.KV_GROUPS,
        [{"kv_group": number} | asdict(group) for number, group in enumerate(groups)],
    )
