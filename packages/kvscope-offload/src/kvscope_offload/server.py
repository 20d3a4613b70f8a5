"""Serving requests with the offload engine, as runs serve them with vLLM.

The engine takes the requests that have arrived as one batch, and computes it to its end before it
takes the next: it is made for throughput, not for latency.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kvscope.api.engines import Finished, Platform
from kvscope.api.engines import rows as engine_rows
from kvscope.api.recording import marks as nvtx
from kvscope.api.tables import kv_plan
from kvscope_offload.amounts import context_bytes
from kvscope_offload.engine import Engine, PassResult
from kvscope_offload.generation import Limits
from kvscope_offload.prediction import Prediction


@dataclass(frozen=True)
class Request:
    """A request that has arrived."""

    request_id: str
    prompt_token_ids: list[int]
    output_tokens: int


@dataclass
class OffloadServer:
    """The engine as runs see one (`engine.port.Engine`); its own scheduler."""

    platform: Platform
    engine: Engine
    waiting: list["Request"] = field(default_factory=list)
    recording: engine_rows.Recording = field(default_factory=engine_rows.Recording)
    marks: nvtx.Marks = field(default_factory=nvtx.Marks)
    tracer: None = None
    host_blocks_total: int = 0  # of requests that are preempted, of which there are none
    host_blocks_used: int = 0

    def __post_init__(self) -> None:
        self._passes: Iterator[PassResult] | None = None
        self._batch: list[Request] = []
        self._tokens: dict[str, list[int]] = {}
        self._ended: set[str] = set()
        self._prediction = Prediction(self.engine)

    @property
    def kv_groups(self) -> tuple[kv_plan.KvGroup, ...]:
        """Empty: its layers share one table, and vLLM groups none."""
        return ()

    @property
    def layers(self) -> int:
        """Transformer blocks."""
        return self.engine.model.layers

    @property
    def kv_blocks_total(self) -> int:
        """Blocks that requests can use, on the device and the host."""
        return self.platform.experiment.cache_blocks

    @property
    def kv_blocks_used(self) -> int:
        """Blocks that requests hold."""
        generation = self.engine.generation
        return generation.pools.used if generation else 0

    @property
    def host_pool(self) -> dict[str, Any]:
        """Entry of run.json for the engine's memory: no pool, and a block kept as activations."""
        token_bytes = self.layers * self.engine.cost.sizes.activation_bytes
        return {
            "host_blocks_total": 0,
            "host_memory": None,
            "pieces_per_block": None,
            "activation_block_bytes": self.engine.block_size * token_bytes,
        }

    @contextmanager
    def check_results(self) -> Iterator[dict[str, Prediction]]:
        """Predictions for the passes, before any is measured."""
        yield {"offload": self._prediction}

    def empty_prefix_cache(self) -> None:
        """Do nothing: there is no prefix cache."""

    def begin(self, recording: engine_rows.Recording, marks: nvtx.Marks) -> None:
        """Note what follows in this recording."""
        self.recording, self.marks = recording, marks

    @property
    def passes(self) -> int:
        """Passes since `begin`."""
        return len(self.recording.passes)

    def submit(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        output_tokens: int,
        output_token_ids: list[int] | None = None,
    ) -> None:
        """Take a request into the next batch; its tokens are the model's (`forces_outputs`)."""
        self.waiting.append(Request(request_id, prompt_token_ids, output_tokens))

    def has_unfinished_requests(self) -> bool:
        """True if a batch is under way or waiting."""
        return bool(self._batch or self.waiting)

    def settle(self) -> None:
        """Nothing is copied beside batches."""

    def abort(self, request_ids: list[str]) -> None:
        """A batch is computed to its end (`platform.refuse_timeout`)."""
        raise NotImplementedError("the offload engine aborts no request")

    def step(self) -> list[Finished]:
        """Compute one pass; returns the requests that end with it."""
        clock = self.platform.clock
        start_ns = clock.now_ns()
        if self._passes is None:
            self._batch, self.waiting = self.waiting, []
            self._tokens = {request.request_id: [] for request in self._batch}
            self._passes = self._start()
        begun = {r.request_id for r in self._batch if self._tokens[r.request_id]}
        ended = self._ended
        self.marks.push("step", len(self.recording.passes))
        schedule_end_ns = clock.now_ns()
        done = next(self._passes)
        if self._prediction.generation is None:
            self._prediction.generation = self.engine.generation
        record = self._record(done, begun, ended)
        record.schedule_start_ns, record.schedule_end_ns = start_ns, schedule_end_ns
        record.output_ns = clock.now_ns()
        self.marks.pop()
        finished = self._finished(done)
        record.end_ns = clock.now_ns()
        return [Finished(name, self._tokens[name], record.end_ns) for name in finished]

    def _start(self) -> Iterator[PassResult]:
        experiment = self.platform.experiment
        return self.engine.stream(
            [request.prompt_token_ids for request in self._batch],
            [request.output_tokens for request in self._batch],
            Limits.of(experiment),
        )

    def _record(self, done: PassResult, begun: set[str], ended: set[str]) -> engine_rows.PassRecord:
        """The record of a pass, in the recording, but for its times."""
        rows, size = done.step.rows, self.engine.block_size
        used = sum(-(-(row.context_tokens + row.new_tokens) // size) for row in rows)
        batch = [
            engine_rows.ScheduledRequest(name, row.new_tokens, row.context_tokens, [token], place)
            for place, (name, row, token) in enumerate(
                zip(self._ids(done), rows, done.tokens, strict=True)
            )
        ]
        record = engine_rows.PassRecord(
            schedule_start_ns=0,
            schedule_end_ns=0,
            finished_before=ended,
            preempted=0,
            waiting=len(self._batch) - len(begun | {*self._ids(done)}) + len(self.waiting),
            kv_blocks_free=self.kv_blocks_total - used,
            host_blocks_used=0,
            batch=lambda: batch,
            context_bytes=self.layers
            * sum(context_bytes(self.engine.cost.sizes, row, size) for row in rows),
        )
        self.recording.passes.append(record)
        return record

    def _ids(self, done: PassResult) -> list[str]:
        return [self._batch[number].request_id for number in done.requests]

    def _finished(self, done: PassResult) -> list[str]:
        """Add a pass's tokens to those of its requests; the requests that end with it."""
        self._ended = set()
        finished = []
        for number, token in zip(done.requests, done.tokens, strict=True):
            request = self._batch[number]
            tokens = self._tokens[request.request_id]
            tokens.append(token)
            if len(tokens) == request.output_tokens:
                finished.append(request.request_id)
                self._ended.add(request.request_id)
        if all(len(self._tokens[r.request_id]) == r.output_tokens for r in self._batch):
            self._finish()
            self._batch, self._passes = [], None
        return finished

    def _finish(self) -> None:
        """Let the engine give back what the batch held."""
        assert self._passes is not None
        for _ in self._passes:
            raise AssertionError("a pass without requests")
        measured = self.engine.measured()
        self._prediction.intervals = self._prediction.intervals or measured
