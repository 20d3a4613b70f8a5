"""Serves a request list once; requests may arrive over time and may be aborted."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

import pandas as pd

from kvscope import tables
from kvscope.engine.clock import Clock
from kvscope.run.arrivals import Arrivals, PassArrivals
from kvscope.run.progress import Progress
from kvscope.run.readings import elapsed, read_clocks
from kvscope.run.recorder import NANOSECONDS, RepeatTables
from kvscope.workload.requests import Request, sha256_of_tokens

if TYPE_CHECKING:
    from kvscope.engine.port import Engine


@dataclass
class ServingResult:
    """The result of serving a request list: output token ids, times of arrivals and of aborts.

    `elapsed` has the seconds that other clocks counted meanwhile (`run.readings`), if any was read.
    """

    clock: Clock
    origin_ns: int
    duration_s: float = 0.0  # from origin_ns to the end of the last request
    outputs: dict[str, list[int]] = field(default_factory=dict)
    chosen: dict[str, list[int]] = field(default_factory=dict)  # by the model, where others came
    arrived_s: dict[str, float] = field(default_factory=dict)
    aborted_s: dict[str, float] = field(default_factory=dict)
    elapsed: dict[str, float | None] = field(default_factory=dict)

    def now_s(self) -> float:
        """Seconds since the start."""
        return self.seconds(self.clock.now_ns())

    def arrival_s(self, request: Request) -> float:
        """When a request arrived: at its own time, or when what it follows had finished."""
        arrival_s = request.arrival_s
        return self.arrived_s[request.request_id] if arrival_s is None else arrival_s

    def seconds(self, time_ns: int) -> float:
        """An instant of the clock as seconds since the start."""
        return (time_ns - self.origin_ns) * NANOSECONDS


def serve(
    engine: "Engine",
    requests: Sequence[Request],
    progress: Progress,
    timeout_s: float | None = None,
    other_clocks: bool = False,
) -> ServingResult:
    """Serve the requests once.

    A request is submitted at its arrival, or when the forward pass at that time ends; its time to
    first token counts from its arrival. One that follows others arrives when they have finished and
    its think time is over. With `timeout_s`, a request that is not finished this long
    after its arrival is aborted when the current pass ends. One that comes before a pass is
    submitted once the pass before has ended, and so it is aborted. `other_clocks` are read together
    with the engine's when it begins and when it ends.
    """
    arrivals, by_pass = Arrivals(requests), PassArrivals(requests)
    clock = engine.platform.clock
    begin = read_clocks(clock) if other_clocks else None
    copy_cpu_ns = engine.platform.copy_cpu_ns if other_clocks else 0
    served = ServingResult(clock, begin.engine_ns if begin else clock.now_ns())
    unfinished: dict[str, float] = {}  # with its arrival
    while arrivals or by_pass or engine.has_unfinished_requests():
        now_s = served.now_s()
        now = ((now_s, request) for request in by_pass.take(engine))
        for arrival_s, request in chain(arrivals.until(now_s), now):
            served.arrived_s[request.request_id] = unfinished[request.request_id] = arrival_s
            submit(engine, request)
        abort(engine, by_pass.take_aborted(engine), unfinished, served)
        if not engine.has_unfinished_requests():
            if arrivals:
                clock.wait(max(0.0, arrivals.next_s - now_s))
            continue
        for finished in engine.step():
            del unfinished[finished.request_id]
            arrivals.finished(finished.request_id, served.seconds(finished.end_ns))
            served.outputs[finished.request_id] = list(finished.token_ids)
            if finished.chosen is not None:
                served.chosen[finished.request_id] = list(finished.chosen)
            progress.advance(len(finished.token_ids))
        engine.platform.after_pass()
        if timeout_s is not None:
            abort_late(engine, unfinished, served, timeout_s)
    if begin is None:
        served.duration_s = served.now_s()
        engine.settle()
        return served
    end = read_clocks(clock)
    engine.settle()
    served.duration_s = (end.engine_ns - begin.engine_ns) * NANOSECONDS
    copies_s = (engine.platform.copy_cpu_ns - copy_cpu_ns) * NANOSECONDS
    served.elapsed = elapsed(begin, end) | {"copy_cpu_s": copies_s}
    return served


def submit(engine: "Engine", request: Request) -> None:
    """Give the engine a request, with the tokens that must come out if the workload has them."""
    token_ids = request.output_token_ids
    engine.submit(
        request.request_id,
        request.prompt_token_ids.tolist(),
        request.output_tokens,
        None if token_ids is None else token_ids.tolist(),
    )


def abort_late(
    engine: "Engine", unfinished: dict[str, float], served: ServingResult, timeout_s: float
) -> None:
    """Abort the requests beyond the timeout, whether running, waiting or swapped out."""
    now_s = served.now_s()
    late = [name for name, arrival_s in unfinished.items() if now_s - arrival_s > timeout_s]
    abort(engine, late, unfinished, served)


def abort(
    engine: "Engine", names: Iterable[str], unfinished: dict[str, float], served: ServingResult
) -> None:
    """Abort those of the requests that are unfinished."""
    if aborted := [name for name in names if name in unfinished]:
        engine.abort(aborted)
    for name in aborted:
        del unfinished[name]
        served.aborted_s[name] = served.now_s()


def requests_table(
    repeat: RepeatTables, number: int, requests: Sequence[Request], served: ServingResult
) -> pd.DataFrame:
    """The `requests` table of one repeat."""
    rows = []
    for request in requests:
        state = repeat.state(request.request_id)
        aborted = request.request_id in served.aborted_s
        chosen = served.chosen.get(request.request_id)
        tokens = state.given if aborted else served.outputs[request.request_id]
        rows.append(
            (
                number,
                request.request_id,
                served.arrival_s(request),
                len(request.prompt_token_ids),
                len(tokens),
                aborted,
                state.first_scheduled_s,
                state.first_token_s,
                served.aborted_s[request.request_id] if aborted else state.finished_s,
                repeat.counted.get(request.request_id, 0),
                sha256_of_tokens(tokens),
                request.conversation,
                request.turn,
                None if chosen is None else sha256_of_tokens(chosen),
            )
        )
    return pd.DataFrame(rows, columns=tables.REQUESTS.names)
