"""Whatever is edited in tables of KV events, `kvscope check` notices.

As in kvscope's own test_forgeries, of a run that has KV events, too.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from kvscope import tables
from kvscope.base.files import write_json
from kvscope.judge import differences
from kvscope.metrics.experiment import analyse
from kvscope.tables import runfile
from kvscope.tables.accounts import COLLECTED
from tests.unit.kv_flushes import Batch, tracing, write_flushes
from tests.unit.test_forgeries import (
    TABLES,
    assert_compared,
    assert_confirmed,
    assert_edits_noticed,
    fit_hashes,
    found,
    made,
    quickly,
    run_of,
    unnoticed,
    write_results,
)

__all__ = ["made", "quickly"]  # fixtures

pytestmark = pytest.mark.thorough

SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A traced run, collected and analysed, and the files of both stages, in again/."""
    return write_results(tmp_path_factory.mktemp("results"), record_events)


def record_events(run: Path) -> dict[str, Any]:
    flushes = [
        Batch([(20, 9), (40, 1)], gpu=True, step=step, layer=layer, origin_ticks=at).flush()
        for step, layer, at in ((0, 0, 10**7), (0, 1, 2 * 10**7), (1, 0, 3 * 10**7))
    ]
    write_flushes(run / runfile.KERNEL_EVENTS, flushes)
    return {"tracing": tracing((0, 0), (SECOND, SECOND)).as_written() | {"events": 100}}


def test_unforged_runs_are_confirmed(made: Path) -> None:
    assert_confirmed(made, (*TABLES, *tables.KV_TABLES))


@pytest.mark.parametrize("table", tables.KV_TABLES, ids=lambda table: table.name)
def test_any_edit_of_any_column_is_a_difference(
    table: tables.Table, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(differences, "ROWS", 3)  # the last row is in a later slice
    assert unnoticed(results / "again" / table.file, tmp_path / table.file, table) == []


@pytest.mark.usefixtures("quickly")
def test_check_compares_every_table(made: Path, results: Path) -> None:
    assert_compared(made, results, tables.KV_TABLES)


@pytest.mark.usefixtures("quickly")
def test_any_edit_of_any_key_of_the_account_is_noticed(made: Path) -> None:
    assert "kv_events" in json.loads((made / COLLECTED).read_text())
    assert_edits_noticed(COLLECTED, made)


@pytest.mark.usefixtures("quickly")
def test_events_left_out_everywhere_are_missed(made: Path) -> None:
    events = tables.read(tables.KV_EVENTS, made / "kv_events.parquet")
    reads = events["kind"].str.endswith("read")
    kept = events[~reads | (events.index % 2 == 0)]
    tables.write(tables.KV_EVENTS, kept, made / "kv_events.parquet")
    facts = json.loads((made / COLLECTED).read_text())
    facts["kv_events"]["rows"] = len(kept)
    write_json(made / COLLECTED, facts)
    fit_hashes(made)
    analyse(run_of(made), made)  # so that the metrics fit, too
    complaints = found(made)
    assert any(f"{len(kept):,} rows" in complaint for complaint in complaints)
    assert any("metrics.parquet: value" in complaint for complaint in complaints)
