"""Events leave the device's buffers unchanged and in order."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kvscope_kernels.engine.cuda.buffer import HEADER, CudaSegments
from kvscope_kernels.engine.cuda.tracer import CudaTracer
from kvscope_kernels.engine.flush import Launch
from kvscope_kernels.kv_events import ATTENTION, RECORD, WRITE


def record(segments: CudaSegments | None, counts: list[int], mark: int) -> np.ndarray:
    """Play the kernel: segments of `counts` events, each in room for the largest."""
    assert segments is not None
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
        for name in HEADER.names or ():
            headers[segments.first + n][name] = fields.get(name, 0)
        kept.append(made)
    return np.concatenate(kept)


@contextmanager
def tracing(directory: Path, events: int, layers: int = 40, **strides: int) -> Iterator[CudaTracer]:
    """A tracer on the CPU with buffers of so many events."""
    every = {"step_stride": 1, "layer_stride": 1, "head_stride": 1} | strides
    experiment = SimpleNamespace(
        tracing=SimpleNamespace(buffer_events=events, **every),
        model=SimpleNamespace(layers=layers, kv_heads=3),
    )
    tracer = CudaTracer(experiment, None, directory, "cpu")  # type: ignore[arg-type]
    yield tracer
    tracer.close()
    assert list(directory.iterdir()) == []


@contextmanager
def forward_pass(tracer: CudaTracer, step: int) -> Iterator[None]:
    tracer.begin_pass(step)
    tracer.open_pass(tile_tokens=16, processors=1)
    yield
    tracer.end_pass()


def recorded(tracer: CudaTracer) -> list[list[Launch]]:
    """The launches of each pass."""
    tracer.finish()
    return [tracer.launches(traced) for traced in tracer.passes]


def test_a_pass_comes_out_as_it_was_recorded(tmp_path: Path):
    written = []
    with tracing(tmp_path, events=1000) as tracer:
        for step in range(5):
            with forward_pass(tracer, step):
                for layer in range(3):
                    segments = tracer.segments(ATTENTION, layer, events=12, count=3)
                    written.append(record(segments, [4, 0, 2], mark=100 * step + 10 * layer))
        launches = [launch for of_pass in recorded(tracer) for launch in of_pass]
        assert [traced.step for traced in tracer.passes] == [0, 1, 2, 3, 4]
    assert [launch.layer for launch in launches] == [0, 1, 2] * 5
    for launch, expected in zip(launches, written, strict=True):
        np.testing.assert_array_equal(launch.events, expected)
        assert launch.segments["events"].tolist() == [4, 0, 2]


def test_events_without_room_in_a_full_buffer_are_only_counted(tmp_path: Path):
    with tracing(tmp_path, events=7) as tracer:
        with forward_pass(tracer, 0):
            for layer in range(3):
                record(tracer.segments(ATTENTION, layer, events=4, count=1), [4], mark=0)
        [launches] = recorded(tracer)
    assert [len(launch.events) for launch in launches] == [4, 3, 0]
    assert [int(launch.segments["dropped"][0]) for launch in launches] == [0, 1, 4]


def test_headers_have_room_however_many_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kvscope_kernels.engine.cuda.buffer.HEADERS_AT_ONCE", 10)
    counts = [3, 30, 5, 9]
    with tracing(tmp_path, events=10) as tracer:
        for step in range(4):
            with forward_pass(tracer, step):
                for layer, count in enumerate(counts):
                    segments = tracer.segments(ATTENTION, layer, events=0, count=count)
                    record(segments, [0] * count, mark=0)
        passes = recorded(tracer)
    for launches in passes:
        assert [len(launch.segments["sm"]) for launch in launches] == counts
        assert all((x.segments["sm"] == np.arange(len(x.segments["sm"]))).all() for x in launches)


def test_headers_may_be_made_where_vllm_forbids_gradients(tmp_path: Path):
    with tracing(tmp_path, events=10) as tracer:
        for step in range(3):
            with forward_pass(tracer, step), torch.inference_mode():
                record(tracer.segments(ATTENTION, 0, events=2, count=1), [2], mark=step)
        passes = recorded(tracer)
    assert [len(launch.events) for launches in passes for launch in launches] == [2, 2, 2]


def test_only_selected_passes_layers_and_heads_are_traced(tmp_path: Path):
    expected = {}
    strides = {"step_stride": 2, "layer_stride": 3, "head_stride": 2}
    with tracing(tmp_path, events=100, layers=5, **strides) as tracer:
        assert (tracer.layers, tracer.kv_heads) == ([0, 3], [0, 2])
        for step in range(4):
            with forward_pass(tracer, step):
                for layer in range(5):
                    for kernel in (WRITE, ATTENTION):
                        segments = tracer.segments(kernel, layer, events=2, count=1)
                        assert (segments is not None) == (step % 2 == 0 and layer in (0, 3))
                        if segments is not None:
                            expected[step, layer, kernel] = record(segments, [2], step + layer)
        passes = recorded(tracer)
        assert [traced.step for traced in tracer.passes] == [0, 2]
        for step, launches in zip((0, 2), passes, strict=True):
            for launch in launches:
                wanted = expected.pop((step, launch.layer, launch.kernel))
                np.testing.assert_array_equal(launch.events, wanted)
                assert launch.segments["events"].tolist() == [2]
        assert not expected
        tracer.clear()
        assert tracer.passes == []
