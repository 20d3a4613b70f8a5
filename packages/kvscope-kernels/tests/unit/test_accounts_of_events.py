"""The account of KV events, damaged: it is noticed wherever it is read."""

from pathlib import Path
from typing import Any

import pytest

from kvscope.tables.accounts import COLLECTED
from tests.unit.kv_access_fixture import write_traced_run
from tests.unit.test_accounts import ABSENT, is_noticed

DAMAGE = [
    (COLLECTED, ["files", "kv_kernels.parquet"], ABSENT),
    (COLLECTED, ["kv_events"], ABSENT),
    (COLLECTED, ["kv_events"], [1]),
    (COLLECTED, ["kv_events", "rows"], "many"),
    (COLLECTED, ["kv_events", "oracles"], None),
    (COLLECTED, ["kv_events", "oracles", "events_dropped"], 3),
    (COLLECTED, ["kv_events", "oracles", "events_dropped", "violations"], "3"),
    (COLLECTED, ["kv_events", "oracles", "events_dropped", "first"], ABSENT),
]


@pytest.mark.parametrize(("account", "keys", "value"), DAMAGE)
def test_damage_is_noticed(account: str, keys: list[str], value: Any, tmp_path: Path) -> None:
    run = write_traced_run(tmp_path)
    is_noticed(account, keys, value, run, tmp_path / "tables" / run.name)
