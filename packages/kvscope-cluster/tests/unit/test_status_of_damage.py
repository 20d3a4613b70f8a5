"""`kvscope status` tells of damaged accounts."""

from pathlib import Path
from typing import Any

import pytest

from kvscope.cli import main
from tests.unit.kv_access_fixture import write_untraced_run
from tests.unit.test_accounts import DAMAGE, is_noticed


@pytest.mark.parametrize(("account", "keys", "value"), DAMAGE)
def test_damage_is_told(
    account: str, keys: list[str], value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_untraced_run(tmp_path, "served")
    is_noticed(account, keys, value, run, tmp_path / "tables" / "served")
    assert main(["status", str(run), "--results", str(tmp_path)]) == 0
    assert f"{account}: damaged" in capsys.readouterr().out
