"""A traced run of the real engine, its events forged: each forgery is noticed under its name."""

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from kvscope import tables
from kvscope.base.files import read_json, write_json
from kvscope.base.limits import LONGEST_FLUSH_BYTES
from kvscope.base.zstd_lines import zstd_lines
from kvscope.collect.collector import collect_run
from kvscope.collect.traces import verdicts
from kvscope.metrics.experiment import analyse
from kvscope.report.check_run import check_run
from kvscope.tables import KV_EVENTS
from kvscope.tables.accounts import COLLECTED
from kvscope.tables.results import Run
from kvscope.tables.runfile import KERNEL_EVENTS, file_record
from kvscope.tables.verdict import HELD, NOT_APPLICABLE
from kvscope_kernels.collect.flushes import Flush, parse_flush
from kvscope_kernels.kv_events import K_READ, K_WRITE, V_READ, V_WRITE
from kvscope_kernels.oracles.judge import Judge, judge_flushes
from kvscope_kernels.reader import READER
from tests.engine.conftest import SCARCE, Runner
from tests.unit.kv_flushes import with_columns

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]
TRACED = (SCARCE, "engine.attention=instrumented", "tracing=full", "repeats=1")
Found = dict[str, Any]


class Trace:
    """The raw flushes of a run, and the verdict on them with some replaced."""

    def __init__(self, directory: Path) -> None:
        self.run = Run(directory)
        lines = zstd_lines(directory / KERNEL_EVENTS, LONGEST_FLUSH_BYTES)
        self.raw = [with_columns(orjson.loads(line)) for line in lines]
        self.flushes = [parsed(found) for found in self.raw]

    def at(self, step: int, layer: int) -> int:
        """The place of a flush."""
        return next(n for n, f in enumerate(self.raw) if (f["step"], f["layer"]) == (step, layer))

    def violated(self, forged: dict[int, Found | None]) -> set[str]:
        """The oracles that the run violates with these flushes in place of its own; None: lost."""
        instead = {place: found and parsed(found) for place, found in forged.items()}
        flushes = [instead.get(place, flush) for place, flush in enumerate(self.flushes)]
        verdict = judge_flushes([flush for flush in flushes if flush], Judge.of_run(self.run))
        return {name for name, found in verdict.items() if found["violations"]}


def parsed(found: Found) -> Flush:
    return parse_flush(orjson.dumps(found), Path(KERNEL_EVENTS), 1)


@pytest.fixture(scope="module")
def trace(run: Runner) -> Trace:
    return Trace(run(*TRACED).directory)


def test_check_computes_again_what_collect_and_analyse_made_of_it(trace: Trace, tmp_path: Path):
    """Events three times as long, the metrics computed from them, and hashes that fit."""
    run = shutil.copytree(trace.run.directory, tmp_path / trace.run.directory.name)
    collect_run(run, run)
    analyse(run, run)
    assert check_run(run) == []
    events = tables.read(KV_EVENTS, run / KV_EVENTS.file)
    took = events["end_ns"] - events["start_ns"]
    forged = events.assign(end_ns=events["start_ns"] + 3 * took)
    tables.write(KV_EVENTS, forged, run / KV_EVENTS.file)
    account = read_json(run / COLLECTED)
    account["files"][KV_EVENTS.file] = file_record(run / KV_EVENTS.file)
    write_json(run / COLLECTED, account)
    analyse(run, run)
    assert check_run(run, quick=True) == []
    result = "\n".join(check_run(run))
    assert "kv_events.parquet: end_ns of row 0 (repeat 0, step 0, layer 0" in result
    assert "(metric kv_" in result


def test_every_oracle_applies_to_a_traced_run_and_holds(trace: Trace):
    verdict = judge_flushes(trace.flushes, Judge.of_run(trace.run))
    kept = {found.name: found.state for found in verdicts(READER, verdict) if found.state != HELD}
    # Runs with modeled events, and with a prefix cache.
    assert kept == dict.fromkeys(("kernel_not_filled", "hit_not_in_table"), NOT_APPLICABLE)
    assert verdict["blocks_moved"]["looked"] == len(trace.flushes)


def test_warm_up_finds_that_attention_is_what_it_should_be(run: Runner):
    """In passes 1, 2, 4, … of it, in all four layers."""
    facts = run(*TRACED).facts
    checks, passes = facts["engine"]["reference_checks"], facts["warmup"]["passes"]
    assert checks["compared"] == 4 * passes.bit_length()
    assert checks["differing"] == 0
    assert checks["largest_error"] < checks["tolerance"]


def forged(found: Found, **to: Any) -> Found:
    return copy.deepcopy(found) | to


def shifted(found: Found) -> Found:
    found = copy.deepcopy(found)
    found["block_table"] = [[block + 1 for block in row] for row in found["block_table"]]
    found["events"]["block"] = [block + 1 for block in found["events"]["block"]]
    return found


def busy(trace: Trace) -> int:
    """A step in the middle with several requests that have several blocks each."""
    steps = [
        found["step"]
        for found in trace.raw
        if len(found["requests"]) > 1 and all(len(row) > 1 for row in found["block_table"])
    ]
    return steps[len(steps) // 2]


def another_layer_twice(trace: Trace) -> dict[int, Found | None]:
    step = busy(trace)
    return {trace.at(step, 3): trace.raw[trace.at(step, 2)]}


def another_layer_under_its_name(trace: Trace) -> dict[int, Found | None]:
    step = busy(trace)
    return {trace.at(step, 3): forged(trace.raw[trace.at(step, 2)], layer=3)}


def unknown_layer(trace: Trace) -> dict[int, Found | None]:
    place = trace.at(busy(trace), 3)
    return {place: forged(trace.raw[place], layer=4)}


def lost_pass(trace: Trace) -> dict[int, Found | None]:
    step = busy(trace)
    return {trace.at(step, layer): None for layer in range(4)}


def blocks_of_a_flush_shifted(trace: Trace) -> dict[int, Found | None]:
    place = trace.at(busy(trace), 1)
    return {place: shifted(trace.raw[place])}


def blocks_of_a_pass_shifted(trace: Trace) -> dict[int, Found | None]:
    places = [trace.at(busy(trace), layer) for layer in range(4)]
    return {place: shifted(trace.raw[place]) for place in places}


def all_blocks_shifted(trace: Trace) -> dict[int, Found | None]:
    return {place: shifted(found) for place, found in enumerate(trace.raw)}


def two_on_one_block(trace: Trace) -> dict[int, Found | None]:
    result = copy.deepcopy(trace.raw[trace.at(busy(trace), 0)])
    table, events = result["block_table"], result["events"]
    taken, table[1][1] = table[1][1], table[0][1]
    events["block"] = [table[0][1] if block == taken else block for block in events["block"]]
    return {trace.at(result["step"], 0): result}


def wrong_block(kind: int) -> Callable[[Trace], dict[int, Found | None]]:
    def forge(trace: Trace) -> dict[int, Found | None]:
        for place, found in enumerate(trace.raw):
            events = copy.deepcopy(found["events"])
            for event, position in enumerate(events["block_position"]):
                if events["kind"][event] == kind and position == 2:
                    events["block"][event] = found["block_table"][events["row"][event]][0]
                    return {place: found | {"events": events}}
        raise AssertionError("no request has three blocks")

    return forge


def written_beyond_its_end(trace: Trace) -> dict[int, Found | None]:
    """Two writes of neighbouring blocks by a worker become one write, which is too long."""
    for place, found in enumerate(trace.raw):
        rows = list(zip(*found["events"].values(), strict=True))
        column = {name: at for at, name in enumerate(found["events"])}
        kind, row, position = (column[name] for name in ("kind", "row", "block_position"))
        where = {(r[kind], r[row], r[position]): at for at, r in enumerate(rows) if r[kind] > 1}
        for (k, request, at_position), at in where.items():
            after = where.get((k, request, at_position + 1))
            if after is None:
                continue
            events, segments = copy.deepcopy(found["events"]), copy.deepcopy(found["segments"])
            events["tokens"][at] += events["tokens"][after]
            for values in events.values():
                del values[after]
            owner = int(np.searchsorted(np.cumsum(segments["events"]), after, side="right"))
            segments["events"][owner] -= 1
            return {place: found | {"events": events, "segments": segments}}
    raise AssertionError("no request writes two blocks at once")


def other_phase(trace: Trace) -> dict[int, Found | None]:
    place = trace.at(busy(trace), 2)
    phases = trace.raw[place]["phases"]
    other = {"decode": "prefill", "prefill": "decode"}
    return {place: forged(trace.raw[place], phases=[other[phases[0]], *phases[1:]])}


FORGERIES: list[tuple[Callable[[Trace], dict[int, Found | None]], set[str]]] = [
    (another_layer_twice, {"passes_missing"}),
    (another_layer_under_its_name, {"kernel_outside_layer"}),
    (unknown_layer, {"layer_unknown", "passes_missing"}),
    (lost_pass, {"passes_missing"}),
    (blocks_of_a_flush_shifted, {"blocks_moved"}),
    (blocks_of_a_pass_shifted, {"blocks_moved"}),
    (all_blocks_shifted, {"block_outside_cache"}),
    (two_on_one_block, {"block_owned_twice", "blocks_moved"}),
    (wrong_block(K_READ), {"block_not_in_table"}),
    (wrong_block(V_READ), {"block_not_in_table"}),
    (wrong_block(K_WRITE), {"block_not_in_table"}),
    (wrong_block(V_WRITE), {"block_not_in_table"}),
    (written_beyond_its_end, {"tokens_outside_block"}),
    (other_phase, {"batch_differs"}),
]


@pytest.mark.parametrize(("forge", "expected"), FORGERIES)
def test_a_forgery_is_noticed(forge: Any, expected: set[str], trace: Trace):
    caught = trace.violated(forge(trace))
    assert expected <= caught
    # Shifted numbers may also leave the cache, and lost events are not those that were counted.
    # The times of the events do not change.
    assert caught <= expected | {"block_outside_cache", "counts_differ"}
