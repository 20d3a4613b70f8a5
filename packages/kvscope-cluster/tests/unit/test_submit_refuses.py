"""`kvscope submit` refuses what a plan refuses."""

from pathlib import Path

import pytest

from kvscope.base.errors import EXIT_BAD_INPUT, BadInput
from kvscope.cli import main as cli
from kvscope.cli import workflow
from tests.unit.test_plan_gpu import CONFIG, OF_CONFIG, TOO_LARGE


def test_snakemake_and_submit_refuse_what_plan_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["plan", *TOO_LARGE, *OF_CONFIG]) == EXIT_BAD_INPUT
    assert cli.main(["submit", *TOO_LARGE, "--cluster", "local", "--dry-run", *OF_CONFIG]) == (
        EXIT_BAD_INPUT
    )
    output = capsys.readouterr().err.splitlines()
    assert len(output) == 2
    assert output[0] == output[1]
    with pytest.raises(BadInput, match="must fit into"):
        workflow.plan(workflow.Options(None, TOO_LARGE), CONFIG, tmp_path)
    assert not list(tmp_path.rglob("manifest.json"))
