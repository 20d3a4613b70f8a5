"""The recorder: from what an engine's scheduler notes to the tables that say what it did.

What a scheduler noted is worked out from tables that every oracle holds of. The recorder must find
the same tables.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from struct import pack
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kvscope import tables
from kvscope.engine.clock import HostClock
from kvscope.engine.recording import (
    PassRecord,
    PreemptionRecord,
    Recording,
    ScheduledRequest,
    Transfer,
)
from kvscope.plan.actions import action
from kvscope.run.recorder import RepeatContext, RepeatTables, replay
from kvscope.run.serving import ServingResult, abort_late, requests_table
from kvscope.tables.kv_group import KvGroup
from kvscope.workload.requests import Request

from .report_fixture import Fake, clock_of, measured

ORIGIN_NS = 7_000_000_000_123
REPEAT = 1
KINDS = {
    "recompute": Fake({"kind": "recompute"}, "recompute"),
    "swap": Fake({"kind": "swap"}, "swap, prefill first"),
    "small pool": Fake({"kind": "pool"}, "swap, a small pool"),
    "mixed": Fake({"kind": "mixed"}, "mixed"),
}
Frames = dict[str, pd.DataFrame]


@dataclass
class Noted:
    """A run of a fake engine, and the records of its scheduler."""

    fake: Fake
    tables: Frames
    recording: Recording
    given: dict[str, list[int]]  # token ids by request

    @property
    def groups(self) -> list[dict[Any, Any]]:
        """The KV groups, each with the values that `KvGroup` has."""
        rows = self.fake.virtual.tables["kv_groups"].drop(columns="kv_group").astype(object)
        return rows.where(rows.notna(), None).to_dict("records")

    @property
    def engine(self) -> dict[str, Any]:
        """The part of run.json about the engine."""
        return self.fake.virtual.facts["engine"]

    def replayed(self) -> RepeatTables:
        context = RepeatContext(
            repeat=REPEAT,
            origin_ns=ORIGIN_NS,
            kv_blocks_total=self.engine["kv_blocks_total"],
            host_blocks_total=self.engine["host_blocks_total"],
            block_size=self.engine["block_size"],
            time_source="measured",
            kv_groups=tuple(KvGroup(**group) for group in self.groups),
        )
        return replay(self.recording, context)


def told(fake: Fake) -> Frames:
    """The tables of one repeat, with the types that they have on disk."""
    frames = measured(fake, REPEAT, clock_of(fake, REPEAT, np.random.default_rng(3)))
    # Activations of every other request are saved.
    chosen = frames["batch"]["request_id"].astype(int) % 2
    frames["batch"]["saved_tokens"] = frames["batch"]["scheduled_tokens"] * chosen
    return {
        name: tables.to_arrow(tables.TABLES[name], frame).to_pandas()
        for name, frame in frames.items()
    }


def rows_of(frame: pd.DataFrame) -> Iterator[Any]:
    """The rows, each with its columns as attributes."""
    yield from frame.itertuples()


def ns(seconds: float) -> int:
    return ORIGIN_NS + round(seconds * 1e9)


def noted(fake: Fake) -> Noted:
    """An engine's tables, and the recording that vLLM's scheduler would leave."""
    result = told(fake)
    ids = count(100)
    given: dict[str, list[int]] = {name: [] for name in result["requests"]["request_id"]}
    passes = list(_passes(fake, result, ids, given))
    lost = result["preemptions"].query("event == 'preempt'")
    layers = result["layers"]
    starts = [ns(seconds) for seconds in layers["start_s"]]
    ends = [ns(seconds) for seconds in layers["start_s"] + layers["duration_s"]]
    four = zip(layers["step"], layers["layer"], starts, ends, strict=True)
    requests = result["requests"].set_index("request_id")
    recording = Recording(
        passes=passes,
        preemptions=[
            PreemptionRecord(
                step=row.step,
                time_ns=ns(row.time_s),
                request_id=row.request_id,
                tokens=row.tokens,
                blocks=row.blocks,
                action=action(row.policy),
                refused=row.refused,
            )
            for row in rows_of(lost)
        ],
        transfers=list(_copies(result["transfers"])),
        layers=array("q", [int(number) for each in four for number in each]),
        counted={str(name): int(n) for name, n in requests["preemptions"].items()},
    )
    return Noted(fake, result, recording, given)


def _passes(
    fake: Fake, found: Frames, ids: Iterator[int], given: dict[str, list[int]]
) -> Iterator[PassRecord]:
    ended = found["requests"].set_index("request_id")["finished_s"].to_dict()
    # The events that ended the previous repeat are reported with the first pass.
    before, previous_end = {"99"}, 0.0
    for step in rows_of(found["steps"]):
        rows = found["batch"][found["batch"]["step"] == step.step]
        end = step.start_s + step.duration_s
        batch = []
        for place, row in enumerate(rows_of(rows)):
            sampled = [next(ids)] * row.sampled_tokens
            given[row.request_id] += sampled
            tokens = (row.scheduled_tokens, row.context_tokens)
            batch.append(
                ScheduledRequest(row.request_id, *tokens, sampled, place, saved=row.saved_tokens)
            )
        gone = (n for n, at in ended.items() if previous_end - 1e-9 <= at < end - 1e-9)
        finished = {str(name) for name in gone}
        yield PassRecord(
            schedule_start_ns=ns(step.start_s),
            schedule_end_ns=ns(step.start_s + step.schedule_s),
            finished_before=finished | before,
            preempted=step.preempted_requests,
            waiting=step.waiting_requests,
            kv_blocks_free=fake.virtual.facts["engine"]["kv_blocks_total"] - step.kv_blocks_used,
            host_blocks_used=step.host_blocks_used,
            output_ns=ns(step.start_s + step.schedule_s + step.forward_s),
            end_ns=ns(end),
            batch=lambda batch=batch: batch,  # type: ignore[misc]
        )
        before, previous_end = set(), end


def _copies(transfers: pd.DataFrame) -> Iterator[Transfer]:
    """The copies in the order of time, as the connector notes them."""
    for row in rows_of(transfers.sort_values("start_s")):
        yield Transfer(
            *(row.request_id, row.direction, row.kind, row.blocks, row.bytes),
            start_ns=ns(row.start_s),
            end_ns=ns(row.end_s),
            seconds=lambda seconds=row.copy_s: seconds,  # type: ignore[misc]
            clock=row.clock,
            step=row.step,
        )


@pytest.fixture(scope="module", params=KINDS)
def each(request: pytest.FixtureRequest) -> Noted:
    return noted(KINDS[request.param])


@pytest.mark.parametrize("name", ["steps", "batch", "preemptions", "transfers", "layers"])
def test_the_tables_are_those_of_the_engine_that_was_noted(each: Noted, name: str) -> None:
    expected, result = each.tables[name], getattr(each.replayed(), name)
    assert len(expected) > 5 or (name == "transfers" and not each.engine["host_blocks_total"])
    by = [column for column in ("step", "event", "request_id", "layer") if column in expected]
    one, other = (frame.sort_values(by, ignore_index=True) for frame in (result, expected))
    pd.testing.assert_frame_equal(one, other, rtol=0, atol=3e-9)


def served_by(each: Noted) -> tuple[list[Request], ServingResult]:
    rows = rows_of(each.tables["requests"])
    requests = [
        Request(row.request_id, row.arrival_s, np.arange(row.prompt_tokens), row.output_tokens)
        for row in rows
    ]
    return requests, ServingResult(HostClock(), ORIGIN_NS, outputs=dict(each.given))


def test_requests_have_their_own_times_tokens_and_preemptions(each: Noted) -> None:
    result = requests_table(each.replayed(), REPEAT, *served_by(each)).set_index("request_id")
    expected = each.tables["requests"].set_index("request_id")
    hashes = {name: sha256(pack(f"<{len(t)}i", *t)).hexdigest() for name, t in each.given.items()}
    assert result["output_sha256"].to_dict() == hashes
    assert len(set(hashes.values())) == len(hashes)
    own = {"output_sha256", "chosen_sha256", "conversation", "turn"}
    columns = [column for column in expected if column not in own]
    pd.testing.assert_frame_equal(
        result[columns].loc[expected.index], expected[columns], atol=3e-9, rtol=0, check_dtype=False
    )


def test_a_request_that_was_given_up_has_the_tokens_of_its_passes_and_the_time_it_was_told(
    each: Noted,
) -> None:
    requests, served = served_by(each)
    gone = requests[4].request_id
    del served.outputs[gone]
    served.aborted_s[gone] = 3.25
    result = requests_table(each.replayed(), REPEAT, requests, served).set_index("request_id")
    assert result["aborted"].sum() == 1
    assert result.loc[gone, "finished_s"] == 3.25
    given = each.given[gone]
    assert result.loc[gone, "output_tokens"] == len(given)
    assert result.loc[gone, "output_sha256"] == sha256(pack(f"<{len(given)}i", *given)).hexdigest()


def test_one_that_was_never_scheduled_has_neither_times_nor_tokens(each: Noted) -> None:
    never = Request("77", 0.5, np.arange(9), 4)
    served = ServingResult(HostClock(), ORIGIN_NS, aborted_s={"77": 2.0})
    (row,) = requests_table(each.replayed(), REPEAT, [never], served).to_dict("records")
    assert (row["first_scheduled_s"], row["first_token_s"]) == (None, None)
    assert (row["aborted"], row["output_tokens"], row["finished_s"]) == (True, 0, 2.0)
    assert (row["arrival_s"], row["prompt_tokens"], row["preemptions"]) == (0.5, 9, 0)
    assert row["output_sha256"] == sha256(b"").hexdigest()


def test_a_request_is_given_up_when_its_own_time_is_over_and_no_other_is() -> None:
    aborted: list[list[str]] = []
    engine: Any = SimpleNamespace(abort=aborted.append)
    now = 10.0
    served = ServingResult(HostClock(), 0)
    served.now_s = lambda: now  # type: ignore[method-assign]
    unfinished = {"early": 1.0, "just": 4.999, "not yet": 5.001, "late": 9.0}
    abort_late(engine, unfinished, served, timeout_s=5.0)
    assert aborted == [["early", "just"]]
    assert set(unfinished) == {"not yet", "late"}
    assert served.aborted_s == {"early": now, "just": now}
    abort_late(engine, unfinished, served, timeout_s=50.0)
    assert len(aborted) == 1, "nobody is late"
