"""Events leave the device's buffers unchanged, in order, and while the next pass runs."""

import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kvscope.engine.attention.cuda.buffer import HEADER, Buffers, Launch, Segments
from kvscope.engine.attention.cuda.tracer import GpuTracer
from kvscope.events import ATTENTION, RECORD, WRITE


def record(segments: Segments, counts: list[int], mark: int) -> np.ndarray:
    """Play the kernel: segments of `counts` events, each in room for the largest."""
    headers = segments.headers.numpy().view(HEADER)[:, 0]
    events = segments.events.numpy().view(RECORD)[:, 0]
    kept = []
    for n, count in enumerate(counts):
        place = segments.first_event + n * max(counts)
        used = max(0, min(count, segments.event_limit - place))
        made = np.zeros(used, RECORD)
        made["block"], made["row"] = np.arange(used) + mark, n
        events[place : place + used] = made
        fields = {"events": used, "dropped": count - used, "place": place, "sm": n}
        for name in HEADER.names:
            headers[segments.first + n][name] = fields.get(name, 0)
        kept.append(made)
    return np.concatenate(kept)


class Passes:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.got: list[tuple[object, list[Launch]]] = []

    def __call__(self, passing: object, launches: list[Launch]) -> None:
        self.got.append((passing, launches))


def test_a_pass_comes_out_as_it_was_recorded():
    passes, written = Passes(), []
    buffers = Buffers(1000, passes, "cpu")
    for step in range(5):
        buffers.begin()
        for layer in range(3):
            segments = buffers.segments("attention", layer, events=12, count=3)
            written.append(record(segments, [4, 0, 2], mark=100 * step + 10 * layer))
        buffers.end(step)
    buffers.close()
    assert [step for step, _ in passes.got] == [0, 1, 2, 3, 4]
    launches = [launch for _, of_pass in passes.got for launch in of_pass]
    assert [launch.layer for launch in launches] == [0, 1, 2] * 5
    for launch, expected in zip(launches, written, strict=True):
        np.testing.assert_array_equal(launch.events, expected)
        assert launch.segments["events"].tolist() == [4, 0, 2]


def test_what_a_full_buffer_has_no_room_for_is_only_counted():
    passes = Passes()
    buffers = Buffers(7, passes, "cpu")
    buffers.begin()
    for layer in range(3):
        record(buffers.segments("attention", layer, events=4, count=1), [4], mark=0)
    buffers.end("pass")
    buffers.close()
    [(_, launches)] = passes.got
    assert [len(launch.events) for launch in launches] == [4, 3, 0]
    assert [int(launch.segments["dropped"][0]) for launch in launches] == [0, 1, 4]


def test_headers_have_room_however_many_there_are(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kvscope.engine.attention.cuda.buffer.HEADERS_AT_ONCE", 10)
    passes = Passes()
    buffers = Buffers(10, passes, "cpu")
    counts = [3, 30, 5, 9]
    for _ in range(2):
        buffers.begin()
        for n, count in enumerate(counts):
            record(buffers.segments("attention", n, events=0, count=count), [0] * count, mark=0)
        buffers.end(None)
    buffers.close()
    for _, launches in passes.got:
        assert [len(launch.segments) for launch in launches] == counts
        assert all((x.segments["sm"] == np.arange(len(x.segments))).all() for x in launches)


def test_headers_may_be_made_where_vllm_forbids_gradients():
    passes = Passes()
    buffers = Buffers(10, passes, "cpu")
    for step in range(3):
        buffers.begin()
        with torch.inference_mode():
            record(buffers.segments("attention", 0, events=2, count=1), [2], mark=step)
        buffers.end(step)
    buffers.close()
    assert [len(launch.events) for _, launches in passes.got for launch in launches] == [2, 2, 2]


def test_a_pass_waits_only_where_all_buffers_are_on_their_way():
    may_go_on, begun = threading.Event(), threading.Event()
    buffers = Buffers(10, lambda *_: may_go_on.wait(10), "cpu")
    for step in range(2):
        buffers.begin()
        buffers.end(step)
    assert buffers.waited_s < 1

    def third() -> None:
        buffers.begin()
        begun.set()

    waiting = threading.Thread(target=third)
    waiting.start()
    assert not begun.wait(0.2)
    may_go_on.set()
    assert begun.wait(10)
    waiting.join()
    assert buffers.waited_s >= 0.1
    buffers.end(2)
    buffers.close()


def test_an_error_on_the_way_is_raised():
    def full(passing: object, launches: list[Launch]) -> None:
        raise OSError("disk full")

    buffers = Buffers(10, full, "cpu")
    buffers.begin()
    buffers.end(0)
    with pytest.raises(RuntimeError, match="KV events") as raised:
        buffers.close()
    assert isinstance(raised.value.__cause__, OSError)


def test_the_tracer_keeps_what_is_asked_for(tmp_path: Path):
    tracing = SimpleNamespace(step_stride=2, layer_stride=3, head_stride=2, buffer_events=100)
    experiment = SimpleNamespace(tracing=tracing, model=SimpleNamespace(layers=5, kv_heads=3))
    tracer = GpuTracer(experiment, tmp_path, clock=None, device="cpu")
    assert (tracer.layers, tracer.kv_heads) == ([0, 3], [0, 2])
    expected = {}
    for step in range(4):
        assert tracer.begin_pass(step) == (step % 2 == 0)
        for layer in range(5):
            for kernel in (WRITE, ATTENTION):
                segments = tracer.segments(kernel, layer, events=2, count=1)
                assert (segments is not None) == (step % 2 == 0 and layer in (0, 3))
                if segments is not None:
                    expected[step, layer, kernel] = record(segments, [2], mark=step + layer)
        tracer.end_pass()
    tracer.finish()
    assert [traced.step for traced in tracer.passes] == [0, 2]
    for traced in tracer.passes:
        for launch in tracer.recorded(traced):
            wanted = expected.pop((traced.step, launch.layer, launch.kernel))
            np.testing.assert_array_equal(launch.events, wanted)
            assert launch.segments["events"].tolist() == [2]
    assert not expected
    tracer.clear()
    assert tracer.passes == []
    tracer.close()
    assert list(tmp_path.iterdir()) == []
