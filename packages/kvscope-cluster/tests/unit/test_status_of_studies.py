"""`kvscope status` of a study: the running experiments, and the next steps."""

from dataclasses import replace

import pytest

from kvscope.base.files import write_json
from kvscope.cli.main import main
from kvscope.run.locks import SUPERVISOR_LOCK, hold_lock
from kvscope.tables.attempts import request_again
from tests.unit.report_fixture import write_study
from tests.unit.test_report_study import BROKEN, ROOMY, SCARCE, WAITING

pytestmark = pytest.mark.slow


def test_invalid_values_are_not_counted(tmp_path, capsys):
    write_study(tmp_path, [ROOMY, replace(SCARCE, warm=False)])
    assert main(["status", "fake", "--results", str(tmp_path)]) == 0
    assert "1 valid" in capsys.readouterr().out


@pytest.mark.parametrize("fake", [WAITING, BROKEN], ids=["for the first time", "after a failure"])
def test_an_experiment_that_is_being_measured_is_running(fake, tmp_path, capsys):
    write_study(tmp_path, [ROOMY, fake])
    directory = tmp_path / "experiments" / fake.id
    attempt = directory / "attempt"
    attempt.mkdir()

    def status() -> str:
        assert main(["status", "fake", "--results", str(tmp_path)]) == 0
        return capsys.readouterr().out

    with hold_lock(directory, SUPERVISOR_LOCK):
        assert "1 complete, 1 valid, 1 running" in status()
        session = {"clock": {"repeats": [{"repeat": n} for n in range(3)]}}
        write_json(attempt / "session.json", session)
        said = status()
        assert ": running, 3 repeats so far" in said
        assert "Make what is missing" not in said
    said = status()
    assert "running" not in said
    assert "Make what is missing" in said


def test_a_finished_experiment_that_is_measured_again_says_so(tmp_path, capsys):
    write_study(tmp_path, [ROOMY])
    directory = tmp_path / "experiments" / ROOMY.id
    request_again(directory)
    (directory / "attempt").mkdir()
    with hold_lock(directory, SUPERVISOR_LOCK):
        assert main(["status", "fake", "--results", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "1 complete" in output
    assert "is being measured again" in output
