"""The load of the machine beside a repeat, as /proc/stat tells it."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.run.load import TICKS_PER_S, CpuTime, load_between, read_cpu_time
from kvscope.tables.runschema import LoadRecord

TIMES = st.floats(0, 1e6)
UNKNOWN = {"cores": None, "steal_share": None, "other_cpu_share": None}


def test_the_first_line_is_of_all_cores(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text(
        "cpu  100 10 20 1000 5 1 2 7 50 0\ncpu0 50 0 0 0 0 0 0 0\ncpu1 50 0 0 0 0 0 0 0\nintr 4\n"
    )
    result = read_cpu_time(stat)
    assert result is not None
    ticks = [round(s * TICKS_PER_S) for s in (result.busy_s, result.stolen_s, result.total_s)]
    assert (ticks, result.cores) == ([133, 7, 1145], 2)


@pytest.mark.parametrize("text", [None, "", "cpu  100 10 20 1000 5 1 2\n", "intr 4\n"])
def test_a_system_that_tells_nothing_has_no_known_load(tmp_path: Path, text: str | None) -> None:
    stat = tmp_path / "stat"
    if text is not None:
        stat.write_text(text)
    assert read_cpu_time(stat) is None
    assert load_between(None, CpuTime(1, 0, 2, 1, 1)) == UNKNOWN
    assert load_between(CpuTime(1, 0, 2, 1, 1), CpuTime(1, 0, 2, 1, 1)) == UNKNOWN


@given(TIMES, TIMES, TIMES, TIMES, st.integers(1, 256))
def test_cpu_time_of_this_process_is_no_other_load(
    own_s: float, others_s: float, stolen_s: float, idle_s: float, cores: int
) -> None:
    before = CpuTime(5.0, 1.0, 9.0, 2.0, cores)
    busy_s = own_s + others_s
    total_s = busy_s + stolen_s + idle_s + 1.0
    after = CpuTime(5.0 + busy_s, 1.0 + stolen_s, 9.0 + total_s, 2.0 + own_s, cores)
    result = LoadRecord.model_validate({"repeat": 0} | load_between(before, after))
    assert result.other_cpu_share == pytest.approx(others_s / total_s, abs=1e-6)
    assert result.steal_share == pytest.approx(stolen_s / total_s, abs=1e-6)
    assert result.other_cpus == pytest.approx(cores * others_s / total_s, abs=1e-4)


def test_this_machine_can_be_read() -> None:
    before = read_cpu_time()
    end = time.monotonic() + 0.1
    while time.monotonic() < end:
        pass
    result = load_between(before, read_cpu_time())
    assert result["other_cpu_share"] is None or 0 <= result["other_cpu_share"] <= 1
