"""Lanes that do real work: inline, in a thread of their own, or on a CUDA stream."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from kvscope_offload.pipeline import Job, Lanes
from kvscope_offload.timeline import Interval

NAMES = ("link", "device", "back")


class InlineLane:
    """Runs a job when it is submitted: what a stream is where nothing runs beside anything."""

    def __init__(self, name: str, intervals: list[Interval]) -> None:
        self.name, self.intervals = name, intervals

    def submit(self, job: Job) -> None:
        """Run a job at once."""
        start_s = time.perf_counter()
        job.run()
        self.intervals.append(Interval.of(job, self.name, start_s, time.perf_counter()))

    def record(self) -> None:
        """Nothing to mark: every job is done when it is submitted."""

    def wait(self, mark: None) -> None:
        """Nothing to wait for: a job is over when it is submitted."""

    def join(self) -> None:
        """Nothing to wait for: every job is done."""


class ThreadLane:
    """A thread that runs jobs in order, so that lanes overlap on a CPU.

    With `bytes_per_s` a job takes at least as long as its bytes over a link of that rate: a link
    that is slower than this machine's memory, whose waiting costs no computation.
    """

    def __init__(
        self, name: str, intervals: list[Interval], bytes_per_s: float | None = None
    ) -> None:
        self.name, self.intervals, self.bytes_per_s = name, intervals, bytes_per_s
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._free_s = 0.0  # when the link has carried everything so far
        self._error: BaseException | None = None
        threads = torch.get_num_threads()
        self._thread = threading.Thread(target=self._work, args=(threads,), name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Add a job."""
        self._jobs.put(lambda: self._run(job))

    def record(self) -> threading.Event:
        """An event that is set when all so far is done."""
        event = threading.Event()
        self._jobs.put(event.set)
        return event

    def wait(self, mark: threading.Event) -> None:
        """Make later work wait for the event."""
        if not mark.is_set():
            self._jobs.put(lambda: _wait(mark))

    def join(self) -> None:
        """Wait until all is done; raises what a job raised."""
        self.record().wait()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the thread when all is done."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self, threads: int) -> None:
        torch.set_num_threads(threads)  # OpenMP counts them for each thread apart
        while (step := self._jobs.get()) is not None:
            step()

    def _run(self, job: Job) -> None:
        if self._error is not None:
            return
        start_s = time.perf_counter()
        try:
            job.run()
        except BaseException as error:  # raised again where the lane is joined
            self._error = error
            return
        if self.bytes_per_s:
            self._free_s = max(self._free_s, start_s) + job.bytes / self.bytes_per_s
            time.sleep(max(0.0, self._free_s - time.perf_counter()))
        self.intervals.append(Interval.of(job, self.name, start_s, time.perf_counter()))


def _wait(mark: threading.Event) -> None:
    mark.wait()


class CudaLane:
    """A CUDA stream; jobs are timed by events, read when all is over."""

    def __init__(self, name: str, intervals: list[Interval], stream: Any) -> None:
        self.name, self.intervals, self.stream = name, intervals, stream
        self._timed: list[tuple[Job, Any, Any]] = []
        self._origin: tuple[float, Any] | None = None

    def submit(self, job: Job) -> None:
        """Launch a job behind what the host's own stream does, such as filling a new tensor."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            start.record()
            job.run()
            end.record()
        self._timed.append((job, start, end))

    def record(self) -> Any:
        """An event behind all that was launched so far."""
        event = torch.cuda.Event()
        event.record(self.stream)
        return event

    def wait(self, mark: Any) -> None:
        """Make later work wait for the event."""
        self.stream.wait_event(mark)

    def join(self) -> None:
        """Wait until all is done."""
        self.stream.synchronize()

    def read(self, origin: Any, origin_s: float) -> None:
        """Turn events into intervals, by an event that was recorded at a known host time."""
        for job, start, end in self._timed:
            begin_s = origin_s + origin.elapsed_time(start) * 1e-3
            end_s = begin_s + start.elapsed_time(end) * 1e-3
            self.intervals.append(Interval.of(job, self.name, begin_s, end_s))
        self._timed.clear()


class RealLanes(Lanes):
    """The three lanes of a machine, and what they did when, in seconds of the host's clock."""

    def __init__(self, device: torch.device, bytes_per_s: float | None, overlap: bool) -> None:
        self.intervals: list[Interval] = []
        self._cuda = device.type == "cuda"
        lanes: list[Any]
        if self._cuda:
            lanes = [CudaLane(n, self.intervals, torch.cuda.Stream(device)) for n in NAMES]
            torch.cuda.synchronize()
            self._origin = torch.cuda.Event(enable_timing=True)
            self._origin.record()
            torch.cuda.synchronize()
            self._origin_s = time.perf_counter()
        elif overlap:
            rates = (bytes_per_s, None, bytes_per_s)
            lanes = [ThreadLane(n, self.intervals, r) for n, r in zip(NAMES, rates, strict=True)]
        else:
            lanes = [InlineLane(n, self.intervals) for n in NAMES]
        super().__init__(*lanes)

    def read(self) -> list[Interval]:
        """Spans of the lanes since they were last read, in order of their start."""
        self.join()
        if self._cuda:
            for lane in (self.link, self.device, self.back):
                lane.read(self._origin, self._origin_s)
        intervals = sorted(self.intervals, key=lambda interval: interval.start_s)
        self.intervals.clear()
        return intervals

    def close(self) -> None:
        """End what runs in threads."""
        for lane in (self.link, self.device, self.back):
            if isinstance(lane, ThreadLane):
                lane.close()
