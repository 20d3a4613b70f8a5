"""A run directory becomes one timeline on the host's clock."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope import tables
from kvscope.base.errors import BadInput
from kvscope.base.files import read_json
from kvscope.collect.collector import collect_run
from kvscope.collect.timeline.alignment import Alignment, align
from kvscope.tables.results import Run
from kvscope.tables.runfile import read_run, write_run
from tests.run_records import facts_of

from .nsys_fixture import NsysFile, RunDirectory, global_id

PROCESS, THREAD = global_id(100), global_id(100, 7)
SECOND = 1_000_000_000


def step(number: int, start_s: float, duration_s: float = 0.1, **values: Any) -> dict[str, Any]:
    times = {"start_s": start_s, "duration_s": duration_s, "schedule_s": 0.01}
    return {"repeat": 0, "step": number, "phase": "decode", **times, **values}


def timeline(run: RunDirectory) -> pd.DataFrame:
    out = run.path / "out"
    collect_run(run.write(), out)
    assert tables.check_file(tables.TIMELINE, out / "timeline.parquet") is None
    return tables.read(tables.TIMELINE, out / "timeline.parquet")


def test_a_run_without_a_profiler_gives_host_rows_and_empty_profiler_tables(
    tmp_path: Path,
) -> None:
    run = RunDirectory(
        tmp_path,
        steps=[step(0, 0.25), step(1, 0.5)],
        layers=[{"repeat": 0, "step": 0, "layer": 3, "start_s": 0.27, "duration_s": 0.01}],
        requests=[{"repeat": 0, "request_id": "4", "arrival_s": 0.0, "finished_s": 0.6}],
    )
    rows = timeline(run)
    assert rows["source"].unique().tolist() == ["host"]
    columns = ["kind", "name", "start_ns", "end_ns"]
    assert list(rows[columns].itertuples(index=False, name=None)) == [
        ("repeat", "repeat 0", SECOND, 3 * SECOND),
        ("request", "request 4", SECOND, 1_600_000_000),
        ("step", "decode", 1_250_000_000, 1_350_000_000),
        ("layer", "layer 3", 1_270_000_000, 1_280_000_000),
        ("step", "decode", 1_500_000_000, 1_600_000_000),
    ]
    assert rows["request_id"].tolist()[1] == "4"
    for table in (tables.NVTX_RANGES, tables.CUDA_API, tables.GPU_KERNELS, tables.GPU_MEMCPYS):
        assert len(tables.read(table, tmp_path / "out" / f"{table.name}.parquet")) == 0
    account = read_json(tmp_path / "out" / "collect.json")
    assert (account["source"], account["alignment"], account["warnings"]) == (None, None, [])


def test_a_preemption_lasts_from_the_pass_that_did_it_to_the_one_that_resumed(
    tmp_path: Path,
) -> None:
    def event(number: int, request: str, kind: str) -> dict[str, Any]:
        of = {"repeat": 0, "request_id": request, "policy": "recompute"}
        return {**of, "step": number, "event": kind}

    run = RunDirectory(
        tmp_path,
        steps=[step(number, number / 10) for number in range(6)],
        preemptions=[
            *(event(1, "a", "preempt"), event(2, "b", "preempt"), event(3, "a", "resume")),
            *(event(4, "a", "preempt"), event(5, "a", "resume")),
        ],
    )
    rows = timeline(run)
    rows = rows[rows["kind"] == "preemption"]
    assert rows["name"].unique().tolist() == ["preempted (recompute)"]
    assert rows["track"].unique().tolist() == ["request a"]
    assert ((rows["start_ns"] - SECOND) // 10**8).tolist() == [1, 4]
    assert ((rows["end_ns"] - SECOND) // 10**8).tolist() == [3, 5]


def profiled(path: Path, offset_ns: int) -> RunDirectory:
    """Two passes of a repeat that starts 1 s into the run, on a profiler clock `offset_ns` off."""
    file = NsysFile(path / "trace.sqlite", capture_end=10 * SECOND)
    own = file.kvscope(THREAD)
    own("repeat", SECOND - offset_ns, 2 * SECOND - offset_ns, 0)
    for number in (0, 1):
        # steps.start_s + steps.schedule_s is when the range is pushed
        pushed = SECOND + number * SECOND // 2 + SECOND // 100 - offset_ns
        own("forward pass", pushed, pushed + 1000, number)
        file.call(pushed + 10, pushed + 20, THREAD, number)
        file.kernel(pushed + 30, pushed + 90, PROCESS, number, deviceId=1, streamId=7)
        file.copy(pushed + 95, pushed + 99, PROCESS, number, deviceId=1, streamId=8)
    file.close()
    return RunDirectory(path, profiler="nsys", steps=[step(0, 0.0), step(1, 0.5)])


def test_profiler_rows_are_moved_onto_the_host_s_clock(tmp_path: Path) -> None:
    rows = timeline(profiled(tmp_path, offset_ns=123_456))
    assert rows["start_ns"].is_monotonic_increasing
    assert rows.groupby("source").size().to_dict() == {"gpu": 4, "host": 3, "nvtx": 3}
    kernels = rows[rows["kind"] == "kernel"]
    assert kernels["start_ns"].tolist() == [1_010_000_030, 1_510_000_030]
    assert kernels["name"].tolist() == ["gemm", "gemm"]
    assert kernels["track"].unique().tolist() == ["GPU 1 stream 7"]
    assert kernels["step"].tolist() == [0, 1]
    assert rows[rows["kind"] == "copy"]["name"].tolist() == ["HtoD", "HtoD"]
    ranges = rows[rows["source"] == "nvtx"]
    assert ranges["track"].unique().tolist() == ["NVTX process 100 thread 7"]
    account = read_json(tmp_path / "out" / "collect.json")
    assert account["alignment"]["method"] == "forward passes"
    assert account["alignment"]["offset_ns"] == 123_456
    assert account["rows"]["timeline"] == len(rows)


def test_without_a_common_pass_the_clocks_are_aligned_by_utc(tmp_path: Path) -> None:
    run = profiled(tmp_path, offset_ns=0)
    run.steps = []
    run.utc_ns -= 5 * SECOND  # the capture began five seconds after the run
    rows = timeline(run)
    kernels = rows[rows["kind"] == "kernel"]
    assert kernels["start_ns"].tolist() == [6_010_000_030, 6_510_000_030]
    account = read_json(tmp_path / "out" / "collect.json")
    assert account["alignment"]["method"] == "utc"
    assert "UTC" in account["warnings"][0]


@pytest.mark.parametrize(
    ("facts", "remedy"),
    [
        ({}, "run with device=cuda on a machine with an NVIDIA GPU"),
        ({"recorded": {}}, "record on a machine with an NVIDIA GPU"),
    ],
)
def test_a_profiled_run_without_cuda_says_what_would_have_it(
    tmp_path: Path, facts: dict[str, Any], remedy: str
) -> None:
    file = NsysFile(tmp_path / "trace.sqlite")
    file.kvscope(THREAD)("repeat", 0, SECOND, 0)
    file.close()
    run = RunDirectory(tmp_path, profiler="nsys").write()
    write_run(run, read_run(run) | facts)
    collect_run(run, tmp_path / "out")
    said = read_json(tmp_path / "out" / "collect.json")["warnings"][0]
    assert said.startswith("Tables cuda_api, gpu_kernels and gpu_memcpys are empty: ")
    assert remedy in said


def test_a_run_that_lost_its_export_says_so(tmp_path: Path) -> None:
    collect_run(RunDirectory(tmp_path, profiler="nsys").write(), tmp_path / "out")
    account = read_json(tmp_path / "out" / "collect.json")
    assert account["warnings"] == ["The run was profiled, but trace.sqlite is not there."]


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"run\.json: no such file"):
        collect_run(tmp_path, tmp_path / "out")
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(BadInput, match=r"run\.json: not the record of a run"):
        collect_run(tmp_path, tmp_path / "out")


def test_a_step_of_an_unknown_repeat_is_refused(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path, steps=[step(0, 0.0, repeat=3)])
    with pytest.raises(BadInput, match=r"run\.json: clock\.repeats has no repeat 3"):
        timeline(run)


def test_a_failed_run_without_tables_still_gives_its_repeats(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.write()
    for file in tmp_path.glob("*.parquet"):
        file.unlink()
    collect_run(tmp_path, tmp_path / "out")
    rows = tables.read(tables.TIMELINE, tmp_path / "out" / "timeline.parquet")
    assert rows["kind"].tolist() == ["repeat"]


# --- the alignment itself


def aligned(late_ns: list[int], offset_ns: int, ppm: float = 0.0) -> Alignment:
    """Align passes a millisecond apart, whose ranges were pushed `late_ns` after scheduling."""
    times = np.arange(len(late_ns)) * 1_000_000
    frame = pd.DataFrame({"repeat": 0, "step": range(len(late_ns)), "start_s": times / 1e9})
    clock = {"repeats": [{"repeat": 0, "start_ns": 0, "duration_s": 1.0}]}
    run = Run(Path(), facts=facts_of(clock=clock), steps=frame.assign(schedule_s=0.0))
    profiler = times - offset_ns + np.array(late_ns) - (times * ppm * 1e-6).astype(np.int64)
    found = align(run, frame[["repeat", "step"]].assign(start_ns=profiler), None)
    assert found is not None
    return found


@given(st.lists(st.integers(0, 50_000), min_size=1), st.integers(-(10**15), 10**15))
def test_the_offset_is_off_by_no_more_than_the_scatter(late: list[int], offset: int) -> None:
    found = aligned(late, offset)
    assert offset - max(late) <= found.offset_ns <= offset - min(late)
    assert found.passes == len(late)
    assert found.residual_median_ns is not None
    assert found.residual_max_ns is not None
    assert found.residual_median_ns <= found.residual_max_ns <= max(late) - min(late) + 1


def test_a_few_late_pushes_do_not_move_the_offset() -> None:
    found = aligned([100] * 90 + [10**9] * 10, offset_ns=7_000)
    assert found.offset_ns == 7_000 - 100
    assert found.residual_median_ns == 0
    assert found.residual_max_ns == 10**9 - 100


def test_a_drift_is_measured_and_warned_of() -> None:
    steady = aligned([0] * 300, offset_ns=5)
    assert steady.drift_ppm == 0
    assert steady.warnings() == []
    drifting = aligned([0] * 3000, offset_ns=5, ppm=100.0)
    assert drifting.drift_ppm == pytest.approx(100.0, rel=1e-3)
    assert "drifted" in drifting.warnings()[0]


@pytest.mark.parametrize("place", range(9))
def test_one_late_reading_is_no_drift(place: int) -> None:
    """A busy machine takes the CPU from a thread between its two readings of an instant."""
    late_ns = [0] * 9
    late_ns[place] = 8_000_000
    assert aligned(late_ns, offset_ns=5).drift_ppm == 0


@pytest.mark.parametrize("passes", [2, 5, 8])
def test_too_few_passes_tell_nothing_of_drift(passes: int) -> None:
    found = aligned([0] * (passes - 1) + [8_000_000], offset_ns=5)
    assert found.drift_ppm is None
    assert found.warnings() == []
