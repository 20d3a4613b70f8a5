"""The figures of a traced run."""

from pathlib import Path

import pytest
import vl_convert

from kvscope.report.figures.registry import drawings
from kvscope.report.load import load
from tests.unit.kv_access_fixture import Served, write_traced_run
from tests.unit.marks import marks_of
from tests.unit.test_report_figures import svg

pytestmark = pytest.mark.slow


def test_every_figure_draws_marks_in_each_of_its_plots(tmp_path: Path) -> None:
    run = write_traced_run(tmp_path, served=Served(prompts=(16, 90), layers=2, heads=2, repeats=2))
    drawn = drawings(load([str(run)], tmp_path))
    assert "kv_accesses" in drawn
    for name, drawing in drawn.items():
        assert marks_of(svg(drawing)), name
        for view in drawing.views:
            assert all(len(frame) for key, frame in view.data.items() if key != "events"), name
    charts = {id(view.chart): view.chart for view in drawn["kv_accesses"].views}
    for chart in charts.values():
        assert vl_convert.vegalite_to_vega(chart)["marks"]
