"""A campaign under the real Nsight Systems: one repeat of each experiment, after the rounds."""

import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from kvscope.base.files import read_json
from kvscope.base.layout import experiment_directory
from kvscope.base.ranges import FORWARD_PASS
from kvscope.collect.collector import collect_run
from kvscope.report.check_run import check_run
from kvscope.run import capture
from kvscope.tables.runfile import NSYS_EXPORT, NSYS_REPORT
from tests.engine.test_campaign import (
    assert_complete,
    assert_nothing_lost,
    ended,
    measure,
    planned,
    repeats,
    rounds_of,
    sessions,
    start,
    wait_for,
)

pytestmark = [pytest.mark.nsys, pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1200)]

ROUNDS = 2
OVERRIDES = ("cache.blocks=64,8", f"repeats={ROUNDS}", "profiler=nsys")
SECRET = "hunter2-is-no-password"


@pytest.fixture(scope="module")
def results(tmp_path_factory, nsys, forked) -> Path:
    """Two experiments, of a user whose shell and whose other processes hold a secret."""
    directory = tmp_path_factory.mktemp("campaign")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECRET_TOKEN", SECRET)
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("temporaries")))
        patch.setattr(tempfile, "tempdir", None)
        with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1e6)"]) as process:
            try:
                both = planned(*OVERRIDES)
                assert measure(both, directory) == {e.id: None for e in both}
            finally:
                process.kill()
    return directory


@pytest.fixture(params=planned(*OVERRIDES), ids=lambda e: f"{e.cache.blocks} blocks")
def experiment(request):
    return request.param


def test_each_experiment_has_one_profiled_repeat_after_its_rounds(results, experiment):
    assert_complete(results, experiment, profiled=1)
    assert rounds_of(results, experiment) == list(range(ROUNDS))
    assert [entry.get("profiled", False) for entry in repeats(results, experiment)] == [
        *[False] * ROUNDS,
        True,
    ]
    facts = read_json(experiment_directory(results, experiment.id) / "run.json")
    assert (facts["profiler"]["used"], facts["profiler"]["reason"]) == ("nsys", None)


def test_the_trace_has_the_ranges_of_that_repeat_and_no_other(results, experiment, tmp_path):
    directory = experiment_directory(results, experiment.id)
    collect_run(directory, tmp_path)
    ranges = pd.read_parquet(tmp_path / "nvtx_ranges.parquet")
    steps = pd.read_parquet(directory / "steps.parquet")
    passes = ranges[(ranges["name"] == FORWARD_PASS) & ranges["repeat"].notna()]
    key = ["repeat", "step"]
    profiled = steps[steps["repeat"] == ROUNDS]
    assert sorted(passes[key].astype(int).itertuples(index=False, name=None)) == sorted(
        profiled[key].itertuples(index=False, name=None)
    )
    alignment = read_json(tmp_path / "collect.json")["alignment"]
    assert alignment["passes"] == len(profiled)
    assert alignment["residual_median_ns"] < 100_000
    assert check_run(directory, quick=True) == []


def test_no_secret_of_the_shell_is_in_the_results(results, experiment):
    directory = experiment_directory(results, experiment.id)
    for file in directory.iterdir():
        assert SECRET.encode() not in file.read_bytes(), file
    with closing(sqlite3.connect(directory / NSYS_EXPORT)) as connection:
        processes = connection.execute("SELECT COUNT(*) FROM PROCESSES").fetchone()[0]
        strings = connection.execute(
            "SELECT COUNT(*) FROM StringIds WHERE instr(CAST(value AS BLOB), ?) > 0", [b"SECRET"]
        ).fetchone()[0]
    assert strings == 0
    if capture.private_namespace():  # its own few; this machine runs many more
        assert processes < 30


# Moments of the profiled sitting, by a file that is there then, and where.
IMPORTING = ("t", "kvscope-scratch-*/profiled.log")
CAPTURED = ("results", f"experiments/*/attempt/{NSYS_REPORT}")


def exists(place: Path, pattern: str) -> bool:
    return any(place.glob(pattern))


def test_a_campaign_that_is_killed_while_it_profiles_goes_on(nsys, forked, tmp_path, monkeypatch):
    temporary, results = tmp_path / "t", tmp_path / "results"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    both = planned(*OVERRIDES)
    before: dict[str, list[dict]] = {}
    for place, pattern in (IMPORTING, CAPTURED):
        process = start(results, *OVERRIDES)
        wait_for(partial(exists, tmp_path / place, pattern), process)
        ended(process, signal.SIGKILL, results)
        now = sessions(results, both)
        assert_nothing_lost(before, now)
        before = now
    last = start(results, *OVERRIDES)
    output = last.communicate()[1]
    assert last.returncode == 0, output
    assert_nothing_lost(before, sessions(results, both))
    for each in both:
        assert rounds_of(results, each) == list(range(ROUNDS))
        profiled = sum(entry.get("profiled", False) for entry in repeats(results, each))
        assert profiled in (1, 2), "a kill may cost a repeat that was served and not yet captured"
        assert_complete(results, each, profiled)
    assert [*temporary.iterdir()] == []
