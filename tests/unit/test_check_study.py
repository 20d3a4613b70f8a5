"""`kvscope check` of a study compares the manifest with its plan, and tables with those of its
runs."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvscope import tables
from kvscope.base.files import write_json
from kvscope.cli.main import main
from kvscope.plan import manifest
from kvscope.plan.grid import expand
from kvscope.report import check_study
from kvscope.report.check_study import study_complaints
from kvscope.report.load import load_study
from kvscope.report.tables import study_metrics, write_tables

from .report_fixture import Fake, write_study

pytestmark = pytest.mark.thorough

CONFIG = Path(__file__).parents[2] / "config"
OVERRIDES = ["cache.blocks=80,90", "overflow=recompute,swap", "device=dry"]


# --- the manifest


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("results")
    return manifest.write(expand(None, OVERRIDES, CONFIG), results)


def first(found: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = found["experiments"][0]
    return entry


FORGERIES: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
    ("varied", lambda m: first(m)["varied"].update({"cache.blocks": 90})),
    ("varied", lambda m: first(m)["varied"].update({"overflow": "swap"})),
    ("label", lambda m: first(m).update(label="swap")),
    ("traits", lambda m: first(m)["traits"].update(overflow="swap")),
    ("pairs", lambda m: m["pairs"]["overflow"].pop()),
    ("grid", lambda m: first(m).update(grid="another")),
    ("id", lambda m: first(m).update(id=m["experiments"][1]["id"])),
    ("experiments", lambda m: m["experiments"].pop()),
    ("experiments", lambda m: m["experiments"].reverse()),
    ("title", lambda m: m.update(title="Another")),
    ("varied_keys", lambda m: m["varied_keys"].pop()),
    ("figures", lambda m: m["figures"].append({"name": "x", "axes": []})),
]


@pytest.mark.parametrize(("key", "forge"), FORGERIES)
def test_an_edited_manifest_is_noticed(
    key: str, forge: Callable[[dict[str, Any]], Any], planned: Path
) -> None:
    before = planned.read_text()
    assert [*study_complaints(planned.parent, CONFIG)] == []
    forged = json.loads(before)
    forge(forged)
    write_json(planned, forged)
    result = [*study_complaints(planned.parent, CONFIG)]
    planned.write_text(before)
    assert any(f"{planned}: " in complaint and key in complaint for complaint in result)


def test_a_plan_of_another_configuration_cannot_be_confirmed(planned: Path, tmp_path: Path) -> None:
    (tmp_path / "workload").mkdir()
    text = (CONFIG / "workload" / "zipf.yaml").read_text()
    (tmp_path / "workload" / "zipf.yaml").write_text(text + "\n")
    (complaint,) = study_complaints(planned.parent, tmp_path)
    assert "cannot be confirmed; plan the study again" in complaint


def test_the_command_checks_the_study_of_a_directory(
    planned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["check", str(planned.parent), "--config-dir", str(CONFIG)]
    assert main(words) == 0
    assert "manifest and tables are those of its plan" in capsys.readouterr().out
    before = planned.read_text()
    planned.write_text(before.replace("adhoc", "another"))
    assert main(words) == 2
    assert "plan the study again" in capsys.readouterr().err
    planned.write_text(before)


# --- its tables


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a study of which one run is complete and one is not."""
    fakes = [
        Fake({"cache.blocks": 14}, "short", repeats=2),
        Fake({"cache.blocks": 2}, status=None),
    ]
    results = write_study(tmp_path_factory.mktemp("results"), fakes)
    write_tables(load_study("fake", results), results / "studies" / "fake")
    return results / "studies" / "fake"


@pytest.fixture
def complaints(written: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """A fake has no plan."""
    monkeypatch.setattr(check_study, "_plan_differences", lambda *_: iter(()))
    return lambda: [*study_complaints(written, CONFIG)]


def test_each_edited_cell_of_the_csv_is_noticed(
    written: Path, complaints: Callable[[], list[str]]
) -> None:
    path = written / "experiments.csv"
    before = path.read_text()
    assert complaints() == []
    header, *rows = csv.reader(before.splitlines())
    for number, column in enumerate(header):
        forged = [list(row) for row in rows]
        forged[0][number] = "1.5" if forged[0][number] != "1.5" else "1.6"
        with path.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([header, *forged])
        (complaint,) = complaints()
        assert complaint.startswith(f"{path}: {column} of row 0 is ")
    path.write_text(before[: before.rindex("\n", 0, -1) + 1])
    assert "has 1 rows" in complaints()[0]
    path.write_text(before)


def test_edited_metrics_of_a_study_are_noticed(
    written: Path, complaints: Callable[[], list[str]]
) -> None:
    path = written / "metrics.parquet"
    before = path.read_bytes()
    table = study_metrics(("cache.blocks",))
    frame = tables.read(table, path)
    tables.write(table, frame.assign(value=frame["value"] * 1.3), path)
    (complaint,) = complaints()
    assert "metric makespan_s" in complaint
    tables.write(table, frame.assign(**{"cache.blocks": "15"}), path)
    assert "cache.blocks of row 0" in complaints()[0]
    path.write_bytes(before)
    assert complaints() == []


def test_tables_beside_those_of_an_unfinished_study_are_checked_too(
    written: Path, complaints: Callable[[], list[str]]
) -> None:
    """An empty or a sound unfinished/ does not hide forged tables in the study's directory."""
    path, table = written / "metrics.parquet", study_metrics(("cache.blocks",))
    before = path.read_bytes()
    shutil.copytree(written, written / "unfinished")
    assert complaints() == []
    tables.write(table, tables.read(table, path).assign(value=1.0), path)
    assert any(complaint.startswith(f"{path}: ") for complaint in complaints())
    path.write_bytes(before)
    shutil.rmtree(written / "unfinished")
