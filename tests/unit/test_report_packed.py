"""One configuration, packed with others on a node and alone on one: the page says what it costs."""

import pandas as pd
import pytest

import kvscope
from kvscope.report.findings import findings
from kvscope.report.load import load
from kvscope.report.study import report

from .report_fixture import Fake, write_study

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

GPU = {"uuid": "GPU-1", "clocks.sm": "1410", "clocks.mem": "1215", "temperature.gpu": "34"}


def placement(exclusive: bool, neighbours: int) -> dict:
    beside = [{"member": f"m{i}", "gpu": str(i), "overlap_s": 10.0} for i in range(neighbours)]
    place = {"pack": "pack-1", "member": "m", "node": "x3001", "exclusive": exclusive}
    after = GPU | {"clocks.sm": "1155"}
    return place | {"neighbours": beside, "gpus": {"before": [GPU], "after": [after]}}


def fake(exclusive: bool, neighbours: int, speed: float) -> Fake:
    return Fake(
        {"exclusive": exclusive},
        speed=speed,
        stall=False,
        exclusive=exclusive,
        placement=placement(exclusive, neighbours),
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    write_study(results, [fake(False, 3, 1.0), fake(True, 0, 1.25)])
    return results


@pytest.fixture(scope="module")
def page(results) -> str:
    return report(["fake"], results, None).read_text(encoding="utf-8")


def test_the_findings_have_what_being_packed_costs_with_its_interval(results):
    found = findings(load(["fake"], results)).differences
    row = next(o for o in found if o.metric.name == "throughput_tokens_per_s")
    assert row.change == "Alone on its node yes instead of no"
    assert row.ratio
    assert row.ratio.low <= 1.25 <= row.ratio.high
    assert row.ratio.low <= row.ratio.value <= row.ratio.high


def test_the_page_says_where_each_ran(page):
    assert "x3001, beside 3 others" in page
    assert "x3001, alone" in page
    assert "GPU-1: 1410 MHz before, 1155 MHz after" in page


def test_neighbours_and_gpus_are_in_the_table_and_in_the_library(results, page):
    rows = pd.read_csv(results / "studies" / "fake" / "experiments.csv")
    assert dict(zip(rows["exclusive"], rows["neighbours"], strict=True)) == {"no": 3, "yes": 0}
    assert set(rows["node"]) == {"x3001"}
    assert set(rows["gpu_uuids"]) == {"GPU-1"}
    study = kvscope.study("fake", results)
    neighbours = {len(run.facts["placement"]["neighbours"]) for run in study.runs.values()}
    assert neighbours == {0, 3}
