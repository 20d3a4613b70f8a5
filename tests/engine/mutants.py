"""Serves requests, then makes the tables of faulty recorders from the observations."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from kvscope import tables
from kvscope.base.time_sources import MEASURED
from kvscope.engine.marks import Marks
from kvscope.engine.recording import Recording
from kvscope.judge.oracles.registry import judge_tables
from kvscope.judge.records import Records
from kvscope.plan.actions import RECOMPUTE
from kvscope.plan.experiment import load
from kvscope.run import recorder
from kvscope.run.recorder import RepeatContext, RepeatTables, Replay, RequestState
from kvscope.tables.evidence import ALL
from kvscope.tables.stalls import find_stalls
from kvscope.tables.verdict import VIOLATED
from kvscope.workload.requests import build, to_frame
from tests.run_records import facts_of

from .conftest import Silent

if TYPE_CHECKING:
    from kvscope.run.serving import ServingResult

RECOVERING, WAITING = "recovering is never reset", "one more request waits"
Change = Callable[[Recording], Recording]


def of_passes(**change: Callable[[Any], Any]) -> Change:
    """A recording with attributes of every pass changed."""

    def made(recording: Recording) -> Recording:
        passes = [
            replace(record, **{name: new(record) for name, new in change.items()})
            for record in recording.passes
        ]
        return replace(recording, passes=passes)

    return made


def of_preemptions(**change: Callable[[Any], Any]) -> Change:
    """A recording with attributes of every preemption changed."""

    def made(recording: Recording) -> Recording:
        changed = [
            replace(preemption, **{name: new(preemption) for name, new in change.items()})
            for preemption in recording.preemptions
        ]
        return replace(recording, preemptions=changed)

    return made


def of_transfers(**change: Callable[[Any], Any]) -> Change:
    """A recording with attributes of every copy changed."""

    def made(recording: Recording) -> Recording:
        changed = [
            replace(transfer, **{name: new(transfer) for name, new in change.items()})
            for transfer in recording.transfers
        ]
        return replace(recording, transfers=changed)

    return made


def without_first(recording: Recording) -> Recording:
    """Tables without the first preemption and its copies."""
    first = recording.preemptions[0].request_id
    copies = [t for t in recording.transfers if t.request_id == first][:2]
    left = [t for t in recording.transfers if t not in copies]
    return replace(recording, preemptions=recording.preemptions[1:], transfers=left)


def times(factor: float) -> Change:
    """Copies that seem to take so many times as long."""
    return of_transfers(seconds=lambda copy: lambda: copy.seconds() * factor)


def of_state(after: Callable[[RequestState], None]) -> type[Replay]:
    """A recorder that changes a request's state after each of its passes."""

    class Faulty(Replay):
        def _batch_row(self, step: int, record: Any, row: Any, *rest: Any) -> tuple[Any, ...]:
            made = super()._batch_row(step, record, row, *rest)
            after(self.requests[row.request_id])
            return made

    return Faulty


def of_rows(change: Callable[[dict[str, Any]], Any]) -> type[Replay]:
    """A recorder that changes each row of `steps`."""

    class Faulty(Replay):
        def forward_pass(self, step: int, record: Any) -> None:
            super().forward_pass(step, record)
            change(self.steps[-1])

    return Faulty


MS = 1_000_000
RECORDINGS: dict[str, Change] = {
    "nothing": lambda recording: recording,
    "the first preemption is not recorded": without_first,
    "preemptions are a pass late": of_preemptions(step=lambda p: p.step + 1),
    "preemptions are 50 ms early": of_preemptions(time_ns=lambda p: p.time_ns - 50 * MS),
    "preempted tokens lack one": of_preemptions(tokens=lambda p: p.tokens - 1),
    "preempted blocks lack one": of_preemptions(blocks=lambda p: p.blocks - 1),
    "a refused copy": of_preemptions(refused=lambda p: True, action=lambda p: RECOMPUTE),
    WAITING: of_passes(waiting=lambda p: p.waiting + 1),
    "one block fewer is in use": of_passes(kv_blocks_free=lambda p: p.kv_blocks_free + 1),
    "the host pool is empty": of_passes(host_blocks_used=lambda p: 0),
    "a pass ends when it is scheduled": of_passes(end_ns=lambda p: p.schedule_end_ns),
    "a pass ends before its last layer": of_passes(
        output_ns=lambda p: p.schedule_end_ns + 1000, end_ns=lambda p: p.schedule_end_ns + 1000
    ),
    "a pass begins 5 ms early": of_passes(schedule_start_ns=lambda p: p.schedule_start_ns - 5 * MS),
    "no preemption is counted": of_passes(preempted=lambda p: 0),
    "copies take a thousand times as long": times(1000),
    "copies take a tenth": times(0.1),
    "copies have twice the bytes": of_transfers(bytes=lambda copy: 2 * copy.bytes),
}
REPLAYS: dict[str, type[Replay]] = {
    RECOVERING: of_state(lambda state: setattr(state, "recovering", bool(state.first_token_s))),
    "only the first pass resumes": of_state(lambda state: setattr(state, "recovering", False)),
    "nothing is recomputed": of_state(lambda state: setattr(state, "computed_tokens", 0)),
    "a lost cache counts": of_rows(
        lambda row: row.update(kv_tokens_used=row["kv_tokens_used"] + 9)
    ),
    "no pass resumes": of_rows(lambda row: row.update(resumed_requests=0)),
    "every pass is mixed": of_rows(lambda row: row.update(phase="mixed")),
    "passes last longer": of_rows(lambda row: row.update(duration_s=row["duration_s"] * 1.1)),
}


def violated(
    repeat: RepeatTables,
    context: RepeatContext,
    facts: dict[str, Any],
    requests: Any,
    served: "ServingResult",
) -> list[str]:
    """The oracles that the tables of a repeat violate."""
    from kvscope.run.serving import requests_table

    steps = repeat.steps.assign(stalled=find_stalls(repeat.steps))
    workload = tables.to_arrow(tables.WORKLOAD, to_frame(requests)).to_pandas()
    outcomes = tables.to_arrow(
        tables.REQUESTS, requests_table(repeat, 0, requests, served)
    ).to_pandas()
    records = Records(
        Path(),
        facts=facts,
        settings={},
        workload=workload,
        requests=outcomes,
        steps=steps,
        batch=repeat.batch,
        preemptions=repeat.preemptions,
        transfers=repeat.transfers,
        kv_groups=recorder.kv_groups_table(context.kv_groups),
        layers=repeat.layers,
        hits=repeat.hits,
        evictions=repeat.evictions,
    )
    return [verdict.name for verdict in judge_tables(records) if verdict.state == VIOLATED]


def main(path: Path) -> dict[str, list[str]]:
    """Every fault and the oracles that notice it."""
    from kvscope.engine.devices.platform import platform_of
    from kvscope.engine.vllm.build import run_engine
    from kvscope.run.serving import serve

    experiment = load(path)
    requests = build(experiment)
    with run_engine(platform_of(experiment)) as engine:
        recording = Recording()
        engine.begin(recording, Marks())
        served = serve(engine, requests, Silent())
        context = RepeatContext(
            repeat=0,
            origin_ns=served.origin_ns,
            kv_blocks_total=engine.kv_blocks_total,
            host_blocks_total=engine.host_blocks_total,
            block_size=experiment.cache.block_size,
            time_source=MEASURED,
            kv_groups=engine.kv_groups,
        )
        made = {
            "kv_blocks_total": engine.kv_blocks_total,
            "host_blocks_total": engine.host_blocks_total,
            "block_size": experiment.cache.block_size,
            "block_bytes": experiment.block_bytes,
            "layers": engine.layers,
            "copies_awaited": experiment.device.copies_awaited,
            "leaked_blocks": [],
        }
    facts = facts_of(engine=made, time_source=MEASURED, evidence=sorted(ALL))
    result = {}
    for name, change in RECORDINGS.items():
        repeat = recorder.replay(change(recording), context)
        result[name] = violated(repeat, context, facts, requests, served)
    for name, faulty in REPLAYS.items():
        with patch.object(recorder, "Replay", faulty):
            repeat = recorder.replay(recording, context)
            result[name] = violated(repeat, context, facts, requests, served)
    return result
