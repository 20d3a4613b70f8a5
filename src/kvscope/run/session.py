"""The measurement of an experiment: build the engine, warm up, repeat, record.

After each repeat it writes the tables of all repeats so far and `session.json`, of which `run.json`
is made (`run.lifecycle`): a crash costs the repeat under way and no other.
"""

import gc
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from kvscope import tables
from kvscope.base import homes
from kvscope.base.errors import BadInput, CannotWrite, KvscopeError
from kvscope.base.files import write_json
from kvscope.base.ranges import REPEAT, WARM_UP
from kvscope.base.statistics import half_width_share
from kvscope.engine.devices.platform import Platform, platform_of
from kvscope.engine.marks import Marks
from kvscope.engine.port import Engine
from kvscope.engine.recording import Recording
from kvscope.plan.experiment import Experiment, load
from kvscope.run.added import added_rows
from kvscope.run.attempt import keep_whole_repeats, read_repeats, read_session, repeats_of
from kvscope.run.events import EventRecorder, recorder_of
from kvscope.run.load import load_between, read_cpu_time
from kvscope.run.progress import Progress
from kvscope.run.recorder import (
    RECORDED,
    RepeatContext,
    RepeatTables,
    kv_groups_table,
    replay,
)
from kvscope.run.serving import ServingResult, requests_table, serve
from kvscope.tables import stalls
from kvscope.tables.added import added_tables, job_table
from kvscope.tables.copies import copies_of
from kvscope.tables.kv_group import KvGroup
from kvscope.tables.runfile import EXPERIMENT_FILE, KERNEL_EVENTS, SESSION_FILE
from kvscope.tables.throughput import throughput_tokens_per_s
from kvscope.workload.requests import Request, build, to_frame


@dataclass
class Session:
    """The results of a measured process so far."""

    experiment: Experiment
    directory: Path
    platform: Platform
    requests: list[Request]
    start_ns: int
    start_utc_ns: int
    warm_up: list[RepeatTables] = field(default_factory=list)
    repeats: list[RepeatTables] = field(default_factory=list)
    outcomes: list[pd.DataFrame] = field(default_factory=list)
    origins_ns: list[int] = field(default_factory=list)
    durations_s: list[float] = field(default_factory=list)
    elapsed: list[dict[str, Any]] = field(default_factory=list)  # by other clocks; the round
    timings_s: dict[str, float] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    kv_groups: tuple[KvGroup, ...] = ()
    leaks: list[dict[str, int]] = field(default_factory=list)
    emptied: list[dict[str, Any]] = field(default_factory=list)  # prefix caches, before repeats
    loads: list[dict[str, float | None]] = field(default_factory=list)  # beside measured repeats
    kernel_events: EventRecorder | None = None
    repeats_written: int = -1
    earlier: dict[str, Any] = field(default_factory=dict)  # session.json of the process before

    @classmethod
    def begin(cls, directory: Path) -> "Session":
        """The session of the experiment in `directory`; goes on where an earlier process ended."""
        experiment = load(directory / EXPERIMENT_FILE)
        platform = platform_of(experiment)
        begun = platform.clock.now_ns(), time.time_ns()
        session = cls(experiment, directory, platform, build(experiment), *begun)
        session._resume()
        return session

    def _resume(self) -> None:
        """Take over the repeats that an earlier process of this attempt has finished."""
        session = read_session(self.directory)
        if not (repeats := repeats_of(session)):
            return
        keep_whole_repeats(self.directory, session)
        self.earlier = session
        clock, count = session["clock"], len(repeats)
        self.start_ns = clock["run_start_monotonic_ns"]
        self.start_utc_ns = clock["run_start_utc_ns"]
        self.outcomes = read_repeats(self.directory, tables.REQUESTS, count)
        read = (read_repeats(self.directory, table, count) for table in RECORDED)
        self.repeats = [RepeatTables(*frames) for frames in zip(*read, strict=True)]
        for name, added in added_tables().items():
            if (self.directory / added.table.file).exists():
                rows = read_repeats(self.directory, added.table, count)
                for repeat, frame in zip(self.repeats, rows, strict=True):
                    repeat.added[name] = frame
        for entry in repeats:
            self.origins_ns.append(self.start_ns + entry.pop("start_ns"))
            self.durations_s.append(entry.pop("duration_s"))
            self.elapsed.append({key: entry[key] for key in entry if key != "repeat"})
        loads = session.get("load", session.get("disturbance", []))  # of an earlier version
        self.loads = [{key: entry[key] for key in entry if key != "repeat"} for entry in loads]
        self.leaks = session["engine"]["leaked_blocks"]
        self.emptied = session["engine"].get("prefix_cache", [])
        parts = ("start_engine", "warm_up")
        self.timings_s = {part: session["timings_s"][part] for part in parts}
        self.repeats_written = count

    @property
    def measured_s(self) -> float:
        """Seconds from the first repeat's start to the last one's end; 0 without repeats."""
        if not self.repeats:
            return 0.0
        return (self.origins_ns[-1] - self.origins_ns[0]) * 1e-9 + self.durations_s[-1]

    @property
    def throughputs(self) -> list[float]:
        """Tokens a second of each finished repeat, without profiled repeats."""
        return [
            throughput_tokens_per_s(frame)
            for frame, entry in zip(self.outcomes, self.elapsed, strict=True)
            if not entry.get("profiled")
        ]

    @property
    def output_tokens(self) -> int:
        """The output tokens of a repeat."""
        return sum(request.output_tokens for request in self.requests)

    def context(self, engine: Engine, origin_ns: int) -> RepeatContext:
        """The context of the repeat that starts at `origin_ns`."""
        return RepeatContext(
            repeat=len(self.repeats),
            origin_ns=origin_ns,
            kv_blocks_total=engine.kv_blocks_total,
            host_blocks_total=engine.host_blocks_total,
            block_size=self.experiment.cache.block_size,
            time_source=self.platform.time_source,
            kv_groups=engine.kv_groups,
        )


@contextmanager
def prepare(session: Session, marks: Marks, progress: Progress) -> Iterator[Engine]:
    """The engine of the session's experiment, warm, until the end of a `with` block.

    Warm-up serves the whole request list, so that it covers every shape class of the repeats.
    """
    experiment, began = session.experiment, time.perf_counter()
    progress.begin("starting the engine")
    with ExitStack() as stack:
        engine = stack.enter_context(session.platform.run_engine(session.directory))
        session.timings_s.setdefault("start_engine", time.perf_counter() - began)
        session.engine = engine_facts(experiment, engine)
        session.kv_groups = engine.kv_groups
        session.kernel_events = recorder_of(experiment, engine.tracer, session.directory)
        session.kernel_events.resume(session.earlier.get("tracing"), session.start_ns)
        began = time.perf_counter()
        with engine.check_results() as checks:
            for number in range(experiment.warmup):
                progress.begin(f"warm-up {number + 1}/{experiment.warmup}", session.output_tokens)
                engine.empty_prefix_cache()
                with marks.range(WARM_UP, number):
                    recording, repeat, served = serve_once(session, engine, marks, progress)
                # An impossible recorder of another package is reported before anything is measured.
                added_rows(recording, 0, session.context(engine, served.origin_ns).seconds)
                session.warm_up.append(repeat)
        session.engine |= {name: check.facts for name, check in checks.items()}
        session.timings_s.setdefault("warm_up", time.perf_counter() - began)
        began = time.perf_counter() - session.measured_s
        try:
            yield engine
        finally:
            session.timings_s["repeats"] = time.perf_counter() - began


def engine_facts(experiment: Experiment, engine: Engine) -> dict[str, Any]:
    """The entries of run.json on the engine."""
    device, groups = experiment.device, engine.kv_groups
    return {
        "kv_blocks_total": engine.kv_blocks_total,
        "block_size": experiment.cache.block_size,
        "block_bytes": groups[0].block_bytes if groups else experiment.block_bytes,
        "layers": engine.layers,
        "device": device.name,
        "copies_awaited": device.copies_awaited,
        "computes": device.allocates,
        "times_layers": device.times_layers,
    } | engine.host_pool


def measure_repeat(
    session: Session,
    engine: Engine,
    marks: Marks,
    progress: Progress,
    measured_in: dict[str, Any] | None = None,
) -> None:
    """Measure the next repeat and save all.

    `measured_in` is added to its entry in run.json: the round, or that it is profiled.
    """
    number, experiment = len(session.repeats), session.experiment
    before = read_cpu_time()
    emptied = engine.empty_prefix_cache()
    progress.begin(f"repeat {number + 1}", session.output_tokens)
    with marks.range(REPEAT, number):
        timeout_s = experiment.workload.timeout_s
        recording, repeat, served = serve_once(session, engine, marks, progress, timeout_s)
    if session.platform.by_clock:
        session.loads.append(load_between(before, read_cpu_time()))
    session.outcomes.append(requests_table(repeat, number, session.requests, served))
    session.origins_ns.append(served.origin_ns)
    session.durations_s.append(served.duration_s)
    session.elapsed.append(served.elapsed | (measured_in or {}))
    session.leaks += find_leaks(engine, number)
    session.emptied += [{"repeat": number} | emptied] if emptied else []
    seconds = session.context(engine, served.origin_ns).seconds
    session.repeats.append(repeat)
    if session.kernel_events:
        session.kernel_events.write(number, recording, repeat)
    session.timings_s["repeats"] = session.measured_s  # so far
    if (jobs := job_table()) and session.experiment.overflow.orders_jobs:
        repeat.added[jobs.table.name] = repeat.jobs
    try:  # other packages' code, whose faults cost their own tables alone
        repeat.added |= added_rows(recording, number, seconds)
    finally:
        save(session)


def serve_once(
    session: Session,
    engine: Engine,
    marks: Marks,
    progress: Progress,
    timeout_s: float | None = None,
) -> tuple[Recording, RepeatTables, ServingResult]:
    """Serve the request list once; returns the recording, its tables, and the outputs."""
    assert session.kernel_events
    by_clock = session.platform.by_clock
    if by_clock:
        gc.collect()  # earlier garbage must not be collected while passes are timed
    recording = Recording()
    engine.begin(recording, marks)
    with session.kernel_events.record():
        served = serve(engine, session.requests, progress, timeout_s, other_clocks=by_clock)
    return recording, replay(recording, session.context(engine, served.origin_ns)), served


def find_leaks(engine: Engine, repeat: int) -> list[dict[str, int]]:
    """The entry of run.json for blocks still in use after all requests ended; empty if none."""
    blocks = {"kv_blocks": engine.kv_blocks_used, "host_blocks": engine.host_blocks_used}
    return [{"repeat": repeat} | blocks] if any(blocks.values()) else []


def write_tables(session: Session) -> None:
    """Write the tables of all finished repeats, unless they are written."""
    if session.repeats_written == len(session.repeats):
        return
    directory = session.directory
    tables.write(tables.WORKLOAD, to_frame(session.requests), directory / "workload.parquet")
    _write(tables.REQUESTS, session.outcomes, directory)
    if session.kv_groups:
        _write(tables.KV_GROUPS, [kv_groups_table(session.kv_groups)], directory)
    steps = _concat(tables.STEPS, [repeat.steps for repeat in session.repeats])
    steps["stalled"] = stalls.find_stalls(steps)
    _write(tables.STEPS, [steps], directory)
    for table in _tables_due(session.experiment):
        _write(table, [getattr(repeat, table.name) for repeat in session.repeats], directory)
    for name, added in added_tables().items():
        if session.repeats and all(name in repeat.added for repeat in session.repeats):
            _write(added.table, [repeat.added[name] for repeat in session.repeats], directory)
    session.repeats_written = len(session.repeats)


def _tables_due(experiment: Experiment) -> Iterator[tables.Table]:
    """The tables that a recording becomes, but for `steps`."""
    for table in RECORDED[1:]:
        if experiment.cache.prefix_caching or table not in tables.OF_PREFIX_CACHE:
            yield table


def _write(table: tables.Table, frames: list[pd.DataFrame], directory: Path) -> None:
    tables.write(table, _concat(table, frames), directory / f"{table.name}.parquet")


def _concat(table: tables.Table, frames: list[pd.DataFrame]) -> pd.DataFrame:
    present = [frame for frame in frames if not frame.empty]
    return pd.concat(present, ignore_index=True) if present else table.empty()


def save(
    session: Session, finished: bool = False, reason: str | None = None, bad_input: bool = False
) -> None:
    """Write the tables and session.json; `finished` if the process ends now."""
    write_tables(session)
    state = {"finished": finished, "reason": reason, "bad_input": bad_input} | summary(session)
    write_json(session.directory / SESSION_FILE, state)


def summary(session: Session) -> dict[str, Any]:
    """The contents of session.json, most of which becomes `run.json`."""
    measured = _concat(tables.STEPS, [repeat.steps for repeat in session.repeats])
    warm_up = _concat(tables.STEPS, [repeat.steps for repeat in session.warm_up])
    copies = _concat(tables.TRANSFERS, [repeat.copies for repeat in session.warm_up])
    return {
        "time_source": session.platform.time_source,
        "evidence": sorted(session.experiment.device.evidence),
        "repeats": session.experiment.stopping.facts(
            len(session.throughputs), half_width_share(session.throughputs)
        ),
        "load": [{"repeat": number} | load for number, load in enumerate(session.loads)],
        "clock": {
            "run_start_monotonic_ns": session.start_ns,
            "run_start_utc_ns": session.start_utc_ns,
            "run_end_utc_ns": time.time_ns(),  # so far, whatever clock the repeats have
            "repeats": [
                {
                    "repeat": number,
                    "start_ns": origin_ns - session.start_ns,
                    "duration_s": duration_s,
                    **by_others,
                }
                for number, (origin_ns, duration_s, by_others) in enumerate(
                    zip(session.origins_ns, session.durations_s, session.elapsed, strict=True)
                )
            ],
        },
        "warmup": {
            "passes": len(warm_up),
            "classes": len(set(stalls.shape_classes(warm_up))) if len(warm_up) else 0,
            "uncovered_classes": stalls.uncovered_classes(measured, warm_up)
            if len(measured)
            else [],
            "copies": copies_of(copies),
        },
        "workload": session.experiment.workload.facts(),
        "engine": engine_of(session),
        "accelerators": session.platform.accelerators(),
        "timings_s": session.timings_s,
        "kernel_events_bytes": file_size_bytes(session.directory / KERNEL_EVENTS),
    } | (session.kernel_events.facts(session.start_ns) if session.kernel_events else {})


def engine_of(session: Session) -> dict[str, Any]:
    """The section `engine` of run.json."""
    section = session.engine | {"leaked_blocks": session.leaks}
    return section | ({"prefix_cache": session.emptied} if session.emptied else {})


def file_size_bytes(path: Path) -> int:
    """Size of a file in bytes, 0 if it does not exist."""
    return path.stat().st_size if path.exists() else 0


def conclude(session: Session, measure: Callable[[], None]) -> str | None:
    """Measure, and save how that ended; returns why it could not be saved, None if it was."""
    reason, bad_input = None, False
    try:
        measure()
    except BadInput as error:  # an error of a policy, which only this process can make
        reason, bad_input = str(error), True
    except KvscopeError as error:
        if error.__cause__ is not None:  # for the author of the package, in the log
            traceback.print_exception(error.__cause__)
        reason = str(error)
    except Exception as error:
        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        reason += homes.advice(error.filename) if isinstance(error, OSError) else ""
    try:
        save(session, finished=True, reason=reason, bad_input=bad_input)
    except CannotWrite as error:
        print(error, file=sys.stderr)
        return str(error)
    return None
