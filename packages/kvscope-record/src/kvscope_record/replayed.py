"""From the events of a recording to the tables of a run: `recorder` replays its passes."""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import pandas as pd
import pyarrow as pa

from kvscope.api.collecting import recorder, stalls
from kvscope.api.engines import rows as engine_rows
from kvscope.api.tables import added, copies, kv_plan, tables
from kvscope.api.words import time_sources
from kvscope_record.blocks import BlockContents
from kvscope_record.counts import Counts
from kvscope_record.gaps import Gap
from kvscope_record.records import (
    STOPPED_OR_ABORTED,
    Arrival,
    Ended,
    Live,
    Ordered,
    Preempted,
    Sampled,
    Scheduled,
)
from kvscope_record.window import Window

OFFLOADING = "OffloadingConnector"
"""vLLM's own offloading, whose orders are recorded."""
SERVED = ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED")
"""vLLM's states of a request that got all its tokens."""


@dataclass
class Replayed:
    """A window as a recording of an engine, and what its requests were."""

    window: Window
    recording: engine_rows.Recording = field(default_factory=engine_rows.Recording)
    came: dict[int, Arrival | Live] = field(default_factory=dict)
    ended: dict[int, Ended] = field(default_factory=dict)
    preempted: dict[int, int] = field(default_factory=dict)  # how often, within the window
    group_hits: dict[tuple[int, str], list[int]] = field(default_factory=dict)  # by pass, request
    blocks: tuple[Iterable[engine_rows.BlockHit], Iterable[engine_rows.BlockEviction]] = (), ()
    origin_ns: int = 0
    end_ns: int = 0

    @property
    def overlapping(self) -> bool:
        """True if passes were scheduled while others computed, as in asynchronous scheduling."""
        passes = self.recording.passes
        return any(b.schedule_start_ns < a.end_ns for a, b in pairwise(passes))

    @property
    def kv_groups(self) -> tuple[kv_plan.KvGroup, ...]:
        """The KV groups of the server's model."""
        return tuple(kv_plan.KvGroup(**group) for group in self.window.facts["kv_groups"])

    @property
    def one_group(self) -> bool:
        """True if blocks are followed: one group keeps all tokens, and prefixes are cached."""
        cached = bool(self.window.facts["prefix_caching"])
        return cached and kv_plan.has_one_block_table(self.kv_groups)


class Steps:
    """The rows of the recorded passes in the table `steps`, which has no gaps."""

    def __init__(self, steps: list[int]) -> None:
        self._steps = steps
        self.last = steps[-1] if steps else -1

    def row(self, step: int) -> int:
        """The row of a pass, or of the next one that is recorded."""
        return bisect_left(self._steps, step)


def read(window: Window) -> Replayed:
    """Make the rows that `replay` takes of the events of a window."""
    replay = Replayed(window)
    replay.came.update({request.request: request for request in window.live})
    scheduled = {event.step for event in window.events if isinstance(event, Scheduled)}
    outputs = {event.step: event for event in window.events if isinstance(event, Sampled)}
    steps = Steps(sorted(scheduled & outputs.keys()))
    contents, orders = BlockContents(window.facts["block_size"]), list[Ordered]()
    counts = Counts(window.facts)
    loads = bool(window.facts["connector"])
    behind_gap, swallowed = False, list[int]()
    for request in window.live:
        if replay.one_group:
            contents.begin(request.request, request.blocks[0])
    for event in window.events:
        if isinstance(event, Arrival):
            replay.came[event.request] = event
        elif isinstance(event, Gap):
            contents.forget()
            behind_gap = True
        elif isinstance(event, Ended):
            replay.ended[event.request] = event
            contents.release(event.request)
            if behind_gap:
                swallowed.append(event.request)
        elif isinstance(event, Preempted) and event.step <= steps.last:
            replay.recording.preemptions.append(_preemption(replay, event, steps))
            replay.preempted[event.request] = replay.preempted.get(event.request, 0) + 1
            contents.release(event.request)
        elif isinstance(event, Ordered) and event.step <= steps.last:
            orders.append(event)
        elif isinstance(event, Scheduled) and event.step in outputs:
            output = outputs.pop(event.step)
            told = counts.recorded(event, output)
            if swallowed:
                event = event._replace(ended=[*{*event.ended, *swallowed}])
                swallowed = []
            behind_gap = False
            replay.recording.passes.append(_pass(event, output, told, loads))
            for request, tokens in event.group_hits:
                replay.group_hits[steps.row(event.step), str(request)] = tokens
            if replay.one_group:
                contents.schedule(steps.row(event.step), event, _tentative(told))
    replay.recording.transfers += _transfers(replay, orders, steps)
    replay.blocks = contents.hits, contents.evictions
    if contents.unknown:
        window.notes.append(
            f"hits: {contents.unknown} block(s) that were found had been computed before the "
            "window; they have no rows, and kv_tokens_used counts them for each of their requests"
        )
    if connector := window.facts["connector"]:
        window.notes.append(
            f"transfers: copies of {connector} as they were ordered, without their times"
            if connector == OFFLOADING
            else f"transfers: the copies of {connector} are not recorded"
        )
    ends = [pass_.end_ns for pass_ in replay.recording.passes]
    times = [event.time_ns for event in window.events if isinstance(event, Arrival | Ended)]
    replay.origin_ns = window.begin.time_ns
    replay.end_ns = max([*ends, *times, replay.origin_ns])
    return replay


Told = Mapping[str, Mapping[int, int]]
"""Further columns of the requests of a pass: for each column, the counts of the requests that have
one.
"""


def _tentative(told: Told) -> Mapping[int, int]:
    """The tentative tokens of each request."""
    counts = Counter[int]()
    for column, _ in tables.BATCH.tentative:
        counts.update(told.get(column, {}))
    return counts


def _with_group_hits(
    batches: Iterable[pa.RecordBatch], hits: Mapping[tuple[int, str], list[int]]
) -> Iterator[pa.RecordBatch]:
    """Rows of `batch` with the tokens that each KV group had, where a look-up told them."""
    for batch in batches:
        if hits:
            place = batch.schema.get_field_index("group_hit_tokens")
            field = batch.schema.field(place)
            keys = zip(batch["step"].to_pylist(), batch["request_id"].to_pylist(), strict=True)
            batch = batch.set_column(place, field, pa.array(map(hits.get, keys), field.type))
        yield batch


def _pass(event: Scheduled, output: Sampled, told: Told, loads: bool) -> engine_rows.PassRecord:
    return engine_rows.PassRecord(
        schedule_start_ns=event.start_ns,
        schedule_end_ns=event.end_ns,
        finished_before=[str(request) for request in event.ended],
        preempted=event.preempted,
        waiting=event.waiting,
        kv_blocks_free=event.blocks_free,
        host_blocks_used=0,
        output_ns=output.output_ns,
        end_ns=output.end_ns,
        batch=partial(_rows, event, output, told, loads),
    )


def _rows(
    event: Scheduled, output: Sampled, told: Told, loads: bool
) -> list[engine_rows.ScheduledRequest]:
    """The requests of a pass. Tokens are not recorded: `sampled` has as many as there were."""
    given = dict(zip(output.requests, output.tokens, strict=True))
    hits: dict[int, int] = {request: tokens for request, tokens in event.hits}
    admitted = {request for request, fresh, _ in event.blocks if fresh} if loads else set[int]()
    rows = zip(event.requests, event.computed, event.cached, strict=True)
    return [
        engine_rows.ScheduledRequest(
            *(str(request), computed, cached, range(given.get(request, 0)), row),
            *((hit := hits.get(request, 0)), cached - hit if request in admitted else 0, 0, ()),
            {column: counts.get(request, 0) for column, counts in told.items()}
            if told
            else engine_rows.NO_COUNTS,
        )
        for row, (request, computed, cached) in enumerate(rows)
    ]


def _preemption(replay: Replayed, event: Preempted, steps: Steps) -> engine_rows.PreemptionRecord:
    return engine_rows.PreemptionRecord(
        step=steps.row(event.step),
        time_ns=event.time_ns,
        request_id=str(event.request),
        tokens=event.tokens,
        blocks=sum(event.blocks),
        group_blocks=() if kv_plan.has_one_block_table(replay.kv_groups) else tuple(event.blocks),
        shared=event.shared,
    )


def _transfers(
    replay: Replayed, orders: list[Ordered], steps: Steps
) -> Iterator[engine_rows.Transfer]:
    """Ordered copies; neither their times nor the loaded tokens are known."""
    awaited = {job: steps.row(event.step) for event in reversed(orders) for job in event.awaited}
    for event in orders:
        for direction, ordered in ((copies.IN, event.loads), (copies.OUT, event.stores)):
            for number, request, blocks, first_block in ordered:
                yield engine_rows.Transfer(
                    str(request),
                    direction,
                    copies.KV,
                    blocks,
                    blocks * replay.kv_groups[0].block_bytes,
                    start_ns=None,
                    end_ns=None,
                    seconds=lambda: math.nan,
                    step=steps.row(event.step),
                    job=engine_rows.Job(
                        number,
                        event.time_ns,
                        first_block,
                        loaded_blocks=lambda: None,
                        arrived_step=lambda: None,
                        awaited_step=awaited.get(number) if direction == copies.OUT else None,
                    ),
                )


def tables_of(made: Replayed) -> tuple[dict[tables.Table, pd.DataFrame], Iterable[Any]]:
    """The host tables of a recording but for `batch`, whose rows are given part by part."""
    facts = made.window.facts
    context = recorder.RepeatContext(
        repeat=0,
        origin_ns=made.origin_ns,
        kv_blocks_total=facts["kv_blocks_total"],
        host_blocks_total=0,
        block_size=facts["block_size"],
        time_source=facts.get("time_source", time_sources.MEASURED),
        kv_groups=made.kv_groups,
    )
    live = {str(request.request): _state(request) for request in made.window.live}
    state = recorder.follow(made.recording, context, live, made.blocks)
    unknown = facts["prefix_caching"] and not made.one_group
    batch = _with_group_hits(
        state.batch.batches(("own_hit_tokens",) if unknown else ()), made.group_hits
    )
    state.batch = recorder.Rows(tables.BATCH, tables.BATCH.names)
    repeat_tables = state.tables()
    repeat_tables.steps["stalled"] = stalls.find_stalls(repeat_tables.steps)
    if unknown:
        repeat_tables.preemptions["own_hit_tokens"] = None
    return {
        tables.WORKLOAD: _workload(made, context),
        tables.REQUESTS: _requests(made, repeat_tables, context),
        tables.STEPS: repeat_tables.steps,
        tables.PREEMPTIONS: repeat_tables.preemptions,
        tables.TRANSFERS: repeat_tables.transfers,
        **_jobs(made, repeat_tables),
        **(
            {tables.HITS: repeat_tables.hits, tables.EVICTIONS: repeat_tables.evictions}
            if made.one_group
            else {}
        ),
        tables.KV_GROUPS: recorder.kv_groups_table(made.kv_groups),
        tables.LAYERS: repeat_tables.layers,
    }, batch


def _jobs(
    replay: Replayed, repeat_tables: recorder.RepeatTables
) -> dict[tables.Table, pd.DataFrame]:
    """Job table of vLLM's offloading, where a package has one."""
    kept = added.job_table() if replay.window.facts["connector"] == OFFLOADING else None
    return {kept.table: repeat_tables.jobs} if kept else {}


def _state(live: Live) -> recorder.RequestState:
    """The state of a request when the window began."""
    computed = live.prompt_tokens + live.output_tokens - 1 if live.output_tokens else 0
    lost = live.preemptions > 0 and not live.cached_tokens
    return recorder.RequestState(
        resident_tokens=live.cached_tokens,
        computed_tokens=max(live.cached_tokens, computed if lost else 0),
        given=[0] * live.output_tokens,
    )


def _workload(replay: Replayed, context: recorder.RepeatContext) -> pd.DataFrame:
    ids = _block_ids(replay)
    rows = [
        {
            "request_id": str(number),
            "arrival_s": context.seconds(_arrival_ns(request)),
            "prompt_tokens": request.prompt_tokens,
            "output_tokens": _due_tokens(request, replay.ended.get(number)),
            **ids.get(number, {}),
        }
        for number, request in replay.came.items()
    ]
    return pd.DataFrame(rows, columns=tables.WORKLOAD.names, dtype=object)


def _block_ids(replay: Replayed) -> dict[int, dict[str, list[int]]]:
    """A number for each full block of each request: equal hashes have equal numbers.

    They are of vLLM's hashes, which it has with a prefix cache; of one KV group, a number a block.
    """
    facts, numbers = replay.window.facts, dict[str, int]()
    each = facts["block_size"] // facts["hash_block_size"] if replay.one_group else 1

    def ids(*hashes: str) -> list[int]:
        return [numbers.setdefault(hash_, len(numbers) + 1) for hash_ in hashes[each - 1 :: each]]

    made = {}
    for number, request in replay.came.items() if facts["prefix_caching"] else ():
        end = replay.ended.get(number)
        made[number] = {"block_ids": ids(*request.hashes, *(end.hashes if end else ()))}
        if isinstance(request, Arrival) and request.plain:
            made[number]["text_ids"] = ids(*request.plain)
    return made


def _due_tokens(request: Arrival | Live, end: Ended | None) -> int:
    """Tokens that a served request got, which may be fewer than asked; else those it asked for."""
    return end.output_tokens if end is not None and end.status in SERVED else request.max_tokens


def _requests(
    made: Replayed, found: recorder.RepeatTables, context: recorder.RepeatContext
) -> pd.DataFrame:
    rows = [_request(made, found, context, number) for number in made.came]
    cut = len(made.came.keys() - made.ended.keys())
    if cut:
        made.window.notes.append(
            f"requests: {cut} had not ended when the recording did; they count as aborted then"
        )
    if unclear := sum(end.status == STOPPED_OR_ABORTED for end in made.ended.values()):
        made.window.notes.append(
            f"aborts: {unclear} request(s) had stop strings, and may have ended by one: vLLM finds "
            "it outside its engine, and aborts the request there"
        )
    return pd.DataFrame(rows, columns=tables.REQUESTS.names, dtype=object)


def _request(
    made: Replayed, found: recorder.RepeatTables, context: recorder.RepeatContext, number: int
) -> dict[str, Any]:
    request, end = made.came[number], made.ended.get(number)
    state = found.state(str(number))
    served = end is not None and end.status in SERVED
    preempted = made.preempted.get(number, 0)
    # What happened before the window is not known.
    given = isinstance(request, Live) and bool(request.output_tokens)
    begun = isinstance(request, Live) and bool(
        given or request.cached_tokens or request.preemptions
    )
    left_s = context.seconds(made.end_ns if end is None else end.time_ns)
    tokens = len(state.given) if end is None else end.output_tokens
    return {
        "repeat": 0,
        "request_id": str(number),
        "arrival_s": context.seconds(_arrival_ns(request)),
        "prompt_tokens": request.prompt_tokens,
        "output_tokens": tokens,
        "aborted": not served,
        "first_scheduled_s": None if begun else state.first_scheduled_s,
        "first_token_s": None if given else state.first_token_s,
        # The pass that gave its last token may be missing.
        "finished_s": state.finished_s if served and len(state.given) == tokens else left_s,
        "preemptions": preempted if end is None else end.preemptions,
    }


def _arrival_ns(request: Arrival | Live) -> int:
    return request.arrival_ns if isinstance(request, Live) else request.time_ns


def duration_s(made: Replayed) -> float:
    """Seconds from the window's start to its end."""
    return (made.end_ns - made.origin_ns) * recorder.NANOSECONDS
