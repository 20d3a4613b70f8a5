"""docs/LIBRARY.md does what it says, on a small study."""

import re
from pathlib import Path
from typing import Any

import pytest

from kvscope.base import layout
from kvscope.collect.collector import collect_run
from kvscope.report.load import load
from kvscope.report.tables import write_tables

from .report_fixture import Fake, write_study

PAGE = Path(__file__).parents[2] / "docs" / "LIBRARY.md"
FAKES = [Fake({"cache.blocks": 64}), Fake({"cache.blocks": 16}, "recompute")]


def test_every_block_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / layout.RESULTS
    write_study(results, FAKES, "quickstart")
    write_tables(load(["quickstart"], results), layout.study_directory(results, "quickstart"))
    directory = layout.experiment_directory(results, FAKES[0].id)
    collect_run(directory, layout.tables_directory(directory))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)
    assert len(names["throughput"]) == len(FAKES)
    assert "planned studies are quickstart" in capsys.readouterr().out
    assert not names["run"].timeline.empty
