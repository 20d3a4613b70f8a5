"""`kvscope status` tells of damaged accounts."""

from pathlib import Path
from typing import Any

import pytest

from kvscope.cli.main import main
from kvscope.tables.accounts import ANALYSED, COLLECTED
from tests.unit.kv_access_fixture import write_traced_run, write_untraced_run
from tests.unit.test_accounts import DAMAGE, is_noticed


def of_account(name: str) -> list[tuple[list[str], Any]]:
    return [(keys, value) for account, keys, value in DAMAGE if account == name]


@pytest.mark.parametrize(("keys", "value"), of_account(ANALYSED))
def test_damage_is_reported(
    keys: list[str], value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_untraced_run(tmp_path, "served")
    is_noticed(ANALYSED, keys, value, run, tmp_path / "tables" / "served")
    assert main(["status", str(run), "--results", str(tmp_path)]) == 0
    assert f"{ANALYSED}: damaged" in capsys.readouterr().out


@pytest.mark.parametrize(("keys", "value"), of_account(COLLECTED))
def test_damage_to_the_account_of_a_traced_run_is_told(
    keys: list[str], value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("kvscope_kernels", reason="a traced run is judged by kvscope-kernels")
    run = write_traced_run(tmp_path)
    is_noticed(COLLECTED, keys, value, run, tmp_path / "tables" / run.name)
    assert main(["status", str(run), "--results", str(tmp_path)]) == 0
    assert f"{COLLECTED}: damaged" in capsys.readouterr().out
