"""Uses of a rehearsed GPU by kvscope's code, each program in a process of its own.

As `rules`: `python programs.py`, on a node.
"""

import json
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kvscope.engine.devices.platform import Platform, platform_of
from kvscope.engine.overflow.host_pool import HostPool
from kvscope.engine.vllm.connectors import copies
from kvscope.plan.grid import expand
from kvscope.tables.copies import OUT
from kvscope_connectors.connector import NativeConnector, TimedWorker
from kvscope_kernels.engine.cuda.buffer import HEADER
from kvscope_kernels.engine.cuda.clock import CudaClock
from kvscope_kernels.engine.cuda.tracer import CudaTracer
from kvscope_kernels.kv_events import ATTENTION, RECORD
from kvscope_offload.lanes import RealLanes
from kvscope_offload.overflow.connector import ActivationConnector, ActivationOrders, Rebuild
from kvscope_offload.pipeline import Job
from rules import outcome
from tests.workflow.test_snakemake import ROOT

PROGRAMS: dict[str, Callable[[], None]] = {}
LAYERS, BLOCKS, WIDTH = 2, 7, 6
EVENTS, SEGMENTS, PASSES = 6, 3, 4
WAYS: tuple[copies.PerBlock | copies.Coalesced, ...] = (copies.PerBlock(), copies.Coalesced())


def program(function: Callable[[], None]) -> Callable[[], None]:
    PROGRAMS[function.__name__] = function
    return function


def platform(*more: str) -> Platform:
    words = ["device=cuda", "engine.attention=instrumented", "profiler=none", *more]
    (planned,) = expand(None, words, ROOT / "config").experiments
    return platform_of(planned.experiment)


@program
def a_copy_is_timed_from_its_begin_to_its_end() -> None:
    here, began = platform(), time.perf_counter()
    seconds = here.timed(lambda: time.sleep(0.05))
    assert 0.05 <= seconds() <= time.perf_counter() - began


@program
def a_lane_may_use_what_was_just_filled() -> None:
    lanes = RealLanes(torch.device("cuda"), None, overlap=True)
    filled = torch.ones(WIDTH, device="cuda")
    lanes.device.submit(Job("compute", lambda: filled.add_(1)))
    lanes.join()
    assert filled.cpu().tolist() == [2.0] * WIDTH


@program
def copies_are_timed_on_the_stream_that_they_are_on() -> None:
    here, x = platform(), torch.ones(3, device="cuda")
    host, other = torch.zeros(3, pin_memory=True), torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        seconds = here.timed(lambda: host.copy_(x, non_blocking=True))
    seconds()  # waits for the copy
    assert host.numpy().tolist() == [1, 1, 1]


@program
def the_pool_is_the_memory_that_it_says() -> None:
    planes = [torch.zeros((BLOCKS, WIDTH), dtype=torch.uint8, device="cuda")]
    for pinned, word in ((True, "pinned"), (False, "pageable")):
        pool, said = copies.host_planes(planes, 5, pinned)
        assert said == word
        assert [plane.is_pinned() for plane in pool] == [pinned]


@program
def blocks_go_out_and_come_back_to_others() -> None:
    for way, pinned in product(WAYS, (True, False)):
        planes = [
            torch.arange(BLOCKS * WIDTH, dtype=torch.uint8, device="cuda").view(BLOCKS, WIDTH) + n
            for n in range(LAYERS)
        ]
        before = [plane.cpu() for plane in planes]
        host, _ = copies.host_planes(planes, 6, pinned)
        out, places, into = (5, 2, 3, 0), (1, 2, 4, 0), (6, 1, 0, 4)
        way.out(planes, out, host, places)
        torch.cuda.synchronize()
        for plane, there, was in zip(planes, host, before, strict=True):
            assert torch.equal(there[list(places)], was[list(out)])
            assert torch.equal(plane.cpu(), was)
        way.into(planes, into, host, places)
        for plane, was in zip(planes, before, strict=True):
            expected = was.clone()
            expected[list(into)] = was[list(out)]
            assert torch.equal(plane.cpu(), expected)


@program
def the_host_waits_for_the_timer_before_it_reads_its_own_clock() -> None:
    clock = CudaClock()
    event = torch.cuda.current_stream().record_event()
    clock.read()
    assert event.query()  # the device is idle: no waiting is left for whoever takes the value


@program
def events_leave_the_gpu_while_the_next_pass_writes_others() -> None:
    here = platform("tracing=full", "tracing.buffer_events=100")
    with tempfile.TemporaryDirectory() as directory:
        tracer = CudaTracer(here.experiment, CudaClock(), Path(directory))
        for step in range(PASSES):
            tracer.begin_pass(step)
            tracer.open_pass(tile_tokens=1, processors=1)
            segments = tracer.segments(ATTENTION, 0, EVENTS, SEGMENTS)
            assert segments is not None
            _record(segments, step)
            tracer.end_pass()
        tracer.finish()
        for step, traced in enumerate(tracer.passes):
            (launch,) = tracer.launches(traced)
            assert launch.events["block"].tolist() == [step] * EVENTS
        assert len(tracer.passes) == PASSES
        tracer.close()


def _record(segments: Any, mark: int) -> None:
    """Play the kernel: events of block `mark`, as many in each segment."""
    each = EVENTS // SEGMENTS
    headers, events = np.zeros(SEGMENTS, HEADER), np.zeros(EVENTS, RECORD)
    headers["events"], headers["place"] = each, np.arange(SEGMENTS) * each
    headers["place"] += segments.first_event
    events["block"] = mark
    for to, made, first in (
        (segments.headers, headers, segments.first),
        (segments.events, events, segments.first_event),
    ):
        words = torch.from_numpy(made.view(np.int64).reshape(len(made), -1))
        to[first : first + len(made)] = words.to("cuda")


@program
def activations_are_saved_where_they_are_ordered_to_be() -> None:
    for way in WAYS:
        _save_activations(way)


def _save_activations(way: Any) -> None:
    connector = ActivationConnector.__new__(ActivationConnector)
    size, hidden, host_blocks = 4, 3, 6
    connector.attach(torch.nn.Module(), platform())
    connector.pool, connector.activations = HostPool(2), HostPool(host_blocks)
    connector.pinned, connector.block_size, connector.done = True, size, []
    connector.activation_block_bytes = size * LAYERS * hidden * 4
    connector.dtype, connector.shape, connector.copies = torch.float32, (LAYERS, hidden), way
    connector.register_kv_caches({"0": torch.zeros((BLOCKS, 2, size, hidden), device="cuda")})
    # Tokens of a request that is not kept, of a kept request, of none, and of another kept one.
    connector.slots = np.array([1, 2, 8, 9, 10, 11, -1, 24, 13, 14])
    saves = {2: 4, 6: 5, 3: 1}  # of the cache's blocks, the pool's
    fetched = Rebuild("of the kept one", 0, size, (2,), (4,))
    for _ in range(2):  # the pool is written to again while the first save is under way
        inputs = [torch.randn((10, hidden), device="cuda") for _ in range(LAYERS)]
        connector.noted = [*inputs]
        connector.bind_connector_metadata(ActivationOrders(saves=saves, rebuild=[fetched]))
        connector.wait_for_save()
        connector.start_load_kv(None)
    for transfer in connector.done:
        if transfer.direction == OUT:
            transfer.seconds()  # whoever has them has waited for the copy
    kept = connector.kept.numpy().view(np.float32).reshape(-1, LAYERS, hidden)
    expected = torch.stack(inputs, dim=1).cpu().numpy()
    where = {2: 16, 3: 17, 4: 18, 5: 19, 7: 20, 8: 5, 9: 6}  # of a token, its place in the pool
    for token, place in where.items():
        assert (kept[place] == expected[token]).all()


class Worker:
    """Stands in for vLLM's, whose copies have a stream of their own."""

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return True

    def get_finished(self) -> list[Any]:
        from vllm.v1.kv_offload.base import TransferResult

        return [TransferResult(1, success=True, transfer_size=8, transfer_time=0.5)]


@program
def copies_of_vllms_own_have_the_seconds_that_it_measured() -> None:
    connector = NativeConnector.__new__(NativeConnector)
    connector.attach(None, platform())
    worker: Any = Worker()
    timed = TimedWorker(worker, connector)
    assert timed.submit_store(1, None, None)
    assert [result.transfer_time for result in timed.get_finished()] == [0.5]
    (copied,) = timed.take()
    assert (copied.seconds(), copied.bytes, copied.clock) == (0.5, 8, "device")


if __name__ == "__main__":
    from vllm.platforms import current_platform

    assert current_platform.is_cuda()
    print(json.dumps({name: outcome(function) for name, function in PROGRAMS.items()}))
