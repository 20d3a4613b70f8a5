"""The Perfetto trace, read back: its tracks, slices and counters."""

import io
from collections import defaultdict
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

from kvscope.collect.collector import collect_run
from kvscope.collect.timeline.perfetto import _Trace

from .nsys_fixture import NsysFile, RunDirectory, global_id

Slice = tuple[str, int, int]


def packets_of(path: Path) -> list[Any]:
    trace = Trace()
    trace.ParseFromString(path.read_bytes())
    return list(trace.packet)


def tracks_of(packets: list[Any]) -> dict[int, Any]:
    described = [p.track_descriptor for p in packets if p.HasField("track_descriptor")]
    return {track.uuid: track for track in described}


def slices_of(packets: list[Any]) -> dict[int, list[Slice]]:
    """The slices of each track, matched like brackets in order of time."""
    slices: dict[int, list[Slice]] = defaultdict(list)
    open_: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for packet in sorted((p for p in packets if p.HasField("track_event")), key=_time):
        event = packet.track_event
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            open_[event.track_uuid].append((event.name, packet.timestamp))
        elif event.type == TrackEvent.TYPE_SLICE_END:
            name, start = open_[event.track_uuid].pop()
            slices[event.track_uuid].append((name, start, packet.timestamp))
    assert not any(open_.values())
    return slices


def _time(packet: Any) -> int:
    return int(packet.timestamp)


def run_directory(path: Path) -> RunDirectory:
    steps = [
        {
            **{"repeat": 0, "step": number, "phase": "decode", "start_s": number / 10},
            **{"duration_s": 0.05, "schedule_s": 0.001, "kv_blocks_used": 10 + number},
            **{"kv_tokens_used": 160 + number, "scheduled_tokens": 4},
        }
        for number in range(3)
    ]
    gap = {"repeat": 0, "request_id": "0", "policy": "recompute"}
    return RunDirectory(
        path,
        steps=steps,
        layers=[{"repeat": 0, "step": 0, "layer": 1, "start_s": 0.01, "duration_s": 0.02}],
        requests=[{"repeat": 0, "request_id": "0", "arrival_s": 0.0, "finished_s": 0.25}],
        preemptions=[{**gap, "step": 1, "event": "preempt"}, {**gap, "step": 2, "event": "resume"}],
    )


def test_tracks_slices_and_counters_of_a_run(tmp_path: Path) -> None:
    file = NsysFile(tmp_path / "trace.sqlite")
    # The profiler began two seconds before the run: its first kernel has a negative time.
    file.kernel(0, 50, global_id(1), 1, deviceId=0, streamId=7)
    file.close()
    run = run_directory(tmp_path)
    run.utc_ns += 2_000_000_000
    collect_run(run.write(), tmp_path / "out", perfetto=True)
    packets = packets_of(tmp_path / "out" / "trace.perfetto-trace")
    tracks, slices = tracks_of(packets), slices_of(packets)
    named = {tracks[uuid].name: sorted(s) for uuid, s in slices.items()}
    zero = 2_000_000_000 + 1_000_000_000  # start of the repeat on the trace's clock
    ms = 1_000_000
    assert named == {
        "repeats": [("repeat 0", zero, zero + 2000 * ms)],
        "forward passes": [
            (f"decode {n}", zero + n * 100 * ms, zero + n * 100 * ms + 50 * ms) for n in range(3)
        ],
        "layers": [("layer 1", zero + 10 * ms, zero + 30 * ms)],
        "request 0": [
            ("preempted (recompute)", zero + 100 * ms, zero + 200 * ms),
            ("request 0", zero, zero + 250 * ms),
        ],
        "GPU 0 stream 7": [("gemm", 0, 50)],
    }
    by_name = {track.name: track for track in tracks.values()}
    assert by_name["layers"].parent_uuid == by_name["forward passes"].uuid
    counted = defaultdict(list)
    for packet in packets:
        if packet.track_event.type == TrackEvent.TYPE_COUNTER:
            track = tracks[packet.track_event.track_uuid]
            assert track.HasField("counter")
            counted[track.name].append((packet.timestamp - zero, packet.track_event.counter_value))
    times = [0, 100 * ms, 200 * ms]
    assert counted == {
        "KV blocks used": list(zip(times, [10, 11, 12], strict=True)),
        "KV tokens used": list(zip(times, [160, 161, 162], strict=True)),
        "scheduled tokens": list(zip(times, [4, 4, 4], strict=True)),
    }


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10))))
def test_every_slice_of_a_track_comes_back_whatever_they_overlap(
    intervals: list[tuple[int, int]],
) -> None:
    given_slices = sorted(
        ((f"s{i}", start, start + length) for i, (start, length) in enumerate(intervals)),
        key=lambda s: (s[1], -s[2]),
    )
    file = io.BytesIO()
    trace = _Trace(file, origin_ns=0)
    for name, start, end in given_slices:
        trace.slice("track", name, start, end)
    trace.finish()
    parsed = Trace()
    parsed.ParseFromString(file.getvalue())
    found = [s for slices in slices_of(list(parsed.packet)).values() for s in slices]
    assert sorted(found) == sorted(given_slices)


def test_slices_that_touch_share_a_track_and_those_that_cross_do_not() -> None:
    file = io.BytesIO()
    trace = _Trace(file, origin_ns=0)
    for start, end in ((0, 5), (5, 9), (8, 12)):
        trace.slice("track", "s", start, end)
    trace.finish()
    parsed = Trace()
    parsed.ParseFromString(file.getvalue())
    lanes = sorted(slices_of(list(parsed.packet)).values(), key=len)
    assert lanes == [[("s", 8, 12)], [("s", 0, 5), ("s", 5, 9)]]
