"""A run under the real Nsight Systems: what it records, and what it must not."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kvscope.base.files import read_json
from kvscope.base.ranges import FORWARD_PASS, LAYER
from kvscope.collect.collector import collect_run
from kvscope.plan.grid import expand
from kvscope.report.check_run import check_run
from kvscope.run import campaign, capture

pytestmark = [pytest.mark.nsys, pytest.mark.engine]

CONFIG = Path(__file__).parents[2] / "config"
SETTINGS = [
    *("workload.num_requests=4", "workload.prompt_tokens=40", "workload.output_tokens=12"),
    *("engine.max_model_len=128", "engine.max_num_batched_tokens=128", "cache.blocks=32"),
    *("repeats=2", "warmup=1", "profiler=nsys"),
]
SECRET = "hunter2-is-no-password"


def run(directory: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the experiment as a user does whose shell, and whose other processes, hold a secret."""
    patch.setenv("SECRET_TOKEN", SECRET)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1e6)"]) as process:
        try:
            experiment = expand(None, SETTINGS, CONFIG).experiments[0].experiment
            wanted = [campaign.Wanted(experiment, directory)]
            (error,) = campaign.measure(wanted, lambda words: None).values()
        finally:
            process.kill()
    assert error is None
    return read_json(directory / "run.json")


@pytest.fixture(scope="module")
def profiled(tmp_path_factory, nsys, require) -> Path:
    """A profiled run, collected beside its records."""
    require("vLLM", find_spec("vllm") is not None, "run `make env`")
    directory = tmp_path_factory.mktemp("profiled")
    with pytest.MonkeyPatch.context() as patch:
        facts = run(directory, patch)
    assert facts["status"] == "complete", (directory / "log.txt").read_text()
    assert facts["profiler"]["reason"] is None
    collect_run(directory, directory, perfetto=True)
    return directory


def of_profiled_repeat(directory: Path, table: str) -> pd.DataFrame:
    """The rows of the repeat that was served under the profiler, after the others."""
    frame = pd.read_parquet(directory / f"{table}.parquet")
    return frame[frame["repeat"] == frame["repeat"].max()]


@pytest.mark.representative
def test_it_is_sound(profiled):
    assert check_run(profiled) == []


@pytest.mark.representative
def test_every_pass_and_layer_of_the_profiled_repeat_has_its_range(profiled):
    ranges = pd.read_parquet(profiled / "nvtx_ranges.parquet")
    steps = of_profiled_repeat(profiled, "steps")
    layers = of_profiled_repeat(profiled, "layers")
    key = ["repeat", "step"]
    passes = ranges[(ranges["name"] == FORWARD_PASS) & ranges["repeat"].notna()]
    blocks = ranges[(ranges["name"] == LAYER) & ranges["repeat"].notna()]
    result = passes[key].astype(int).sort_values(key).to_numpy().tolist()
    assert result == steps[key].sort_values(key).to_numpy().tolist()
    assert sorted(blocks[[*key, "layer"]].astype(int).itertuples(index=False, name=None)) == sorted(
        layers[[*key, "layer"]].itertuples(index=False, name=None)
    )


def test_the_two_clocks_agree_within_a_millisecond(profiled):
    alignment = read_json(profiled / "collect.json")["alignment"]
    assert alignment["passes"] == len(of_profiled_repeat(profiled, "steps"))
    assert alignment["residual_median_ns"] < 100_000
    assert alignment["residual_p99_ns"] < 1_000_000


def test_the_timeline_holds_host_and_profiler_on_one_clock(profiled):
    timeline = pd.read_parquet(profiled / "timeline.parquet")
    host = timeline[(timeline["source"] == "host") & (timeline["kind"] == "step")]
    nvtx = timeline[(timeline["source"] == "nvtx") & (timeline["name"] == FORWARD_PASS)]
    both = host.merge(nvtx.dropna(subset=["repeat"]), on=["repeat", "step"])
    assert len(both) == len(of_profiled_repeat(profiled, "steps"))
    late = (both["start_ns_x"] <= both["start_ns_y"]) & (both["end_ns_y"] <= both["end_ns_x"])
    assert late.mean() > 0.95  # all but those that the clocks' residual moves across a border


def test_no_secret_of_the_shell_is_in_the_results(profiled):
    for file in profiled.iterdir():
        assert SECRET.encode() not in file.read_bytes(), file
    with closing(sqlite3.connect(profiled / "trace.sqlite")) as connection:
        processes = connection.execute("SELECT COUNT(*) FROM PROCESSES").fetchone()[0]
    # Its own few; this machine runs many more.
    assert processes < 20


def test_where_no_namespace_is_to_be_had_the_environments_are_taken_out(
    profiled, tmp_path, monkeypatch
):
    monkeypatch.setattr(capture, "private_namespace", lambda: ())
    facts = run(tmp_path, monkeypatch)
    assert facts["status"] == "complete"
    assert not (tmp_path / "trace.nsys-rep").exists()
    assert SECRET.encode() not in (tmp_path / "trace.sqlite").read_bytes()
    collect_run(tmp_path, tmp_path)
    assert read_json(tmp_path / "collect.json")["rows"]["nvtx_ranges"] > 0
