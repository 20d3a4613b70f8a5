"""Experiments on virtual clocks are made by a fork; a lost fork costs its present experiment."""

import io
import os
import signal
import sys
from pathlib import Path

import pytest

from kvscope.base.errors import EXIT_FAILED, BadInput, CannotWrite, KvscopeError
from kvscope.cli import batch
from kvscope.engine.devices.dry import DryPlatform
from kvscope.plan.grid import expand
from kvscope.run.display import Line

CONFIG = Path(__file__).parents[2] / "config"


def ended(job: batch.Job) -> KvscopeError | None:
    """In place of a run: an experiment's seed says how it ends."""
    match job.experiment.seed:
        case 2:
            os.kill(os.getpid(), signal.SIGKILL)
        case 3:
            return BadInput("the policy takes no such value")
    return None


def parity(job: batch.Job) -> KvscopeError | None:
    """In place of a run: the process's directory, and whether modules are found there."""
    found = os.environ["PARITY"] in sys.path
    return KvscopeError(f"{os.environ['PARITY']} {found}")


def jobs(place: Path, device: str = "device=dry", tables: bool = False) -> list[batch.Job]:
    planned = expand(None, [device, "seed=1,2,3,4"], CONFIG).experiments
    return [
        batch.Job(point.experiment, place / str(point.experiment.seed), tables=tables)
        for point in planned
    ]


def test_a_lost_fork_costs_its_experiment_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "run_one", ended)
    out = io.StringIO()
    four = jobs(tmp_path)
    with Line(out) as line:
        errors = [*batch.run(four, line).values()]
        assert batch.run_all(four, line) == EXIT_FAILED
    assert [type(error) for error in errors] == [type(None), KvscopeError, BadInput, type(None)]
    assert "was killed" in str(errors[1])
    assert f"2 of 4 failed: {four[1].experiment.id}, {four[2].experiment.id}" in out.getvalue()


def test_experiments_that_need_other_variables_have_other_forks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def environment(platform: DryPlatform) -> dict[str, str]:
        directory = f"/seeds/{platform.experiment.seed % 2}"
        return {"PARITY": directory, "PYTHONPATH": directory}

    monkeypatch.setattr(DryPlatform, "environment", environment)
    monkeypatch.setattr(batch, "run_one", parity)
    four = jobs(tmp_path)
    with Line(io.StringIO()) as line:
        errors = batch.run(four, line)
    said = [str(errors[job.experiment.id]) for job in four]
    assert said == [f"/seeds/{number} True" for number in (1, 0, 1, 0)]


def test_an_error_of_a_fork_keeps_its_words_and_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvscope.run import virtual

    def full(*_: object) -> None:
        raise CannotWrite(tmp_path, OSError(28, ""))

    monkeypatch.setattr(virtual, "measure", full)
    with Line(io.StringIO()) as line:
        (error, *_) = batch.run(jobs(tmp_path)[:1], line).values()
    assert str(error).startswith(f"{tmp_path}: cannot be written (No space left on device)")


def test_a_lost_fork_costs_the_tables_of_its_experiment_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvscope.run import campaign

    def make_tables(directory: Path, perfetto: bool) -> None:
        if directory.name == "2":
            os.kill(os.getpid(), signal.SIGKILL)
        (directory / "made").touch()

    monkeypatch.setattr(
        campaign, "measure", lambda wanted, *_: {w.experiment.id: None for w in wanted}
    )
    monkeypatch.setattr(batch, "make_tables", make_tables)
    monkeypatch.setattr(batch, "_measured_s", lambda _: 0.0)
    four = jobs(tmp_path, "device=cpu", tables=True)
    for job in four:
        job.directory.mkdir()
    with Line(io.StringIO()) as line:
        errors = [*batch.run(four, line).values()]
    assert [type(error) for error in errors] == [type(None), KvscopeError, type(None), type(None)]
    assert "its records are kept" in str(errors[1])
    assert [path.parent.name for path in sorted(tmp_path.glob("*/made"))] == ["1", "3", "4"]
