"""The page of the paper, of a study whose values are the published ones."""

import math
import re
from pathlib import Path

import pytest

from kvscope.report.data import StudyData
from kvscope_paper import page
from kvscope_paper.agreement import KINDS
from kvscope_paper.claims.judging import MARKS
from kvscope_paper.claims.registry import anchor, claims
from kvscope_paper.comparison import Comparison
from kvscope_paper.layouts import layouts
from kvscope_paper.published.figures import Point, points

CLAIMS = claims()
COUNTS = {"forward_passes": "passes", "tokens_written": "tokens", "scheduled_tokens": "tokens"}


def compared(point: Point) -> Comparison:
    unit = COUNTS.get(point.table.metric, "s")
    device = "modeled a100-40gb"
    return Comparison(point, device, None, point.value, math.nan, math.nan, point.value, unit)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's directory: drawing the figures takes seconds."""
    directory = tmp_path_factory.mktemp("paper")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "compare", lambda study: [compared(point) for point in points()])
        page.write_paper(StudyData("paper", "The paper", "", (), ()), directory)
    return directory


@pytest.fixture(scope="module")
def html(written: Path) -> str:
    return (written / page.PAGE).read_text(encoding="utf-8")


def test_the_page_links_each_claim_to_its_figures_and_shows_both_verdicts(html: str) -> None:
    shown = html.partition("Key observations")[2].partition("</section>")[0]
    links = re.findall(r'<a href="#(figure-[^"]+)">', shown)
    assert links == [anchor(figure) for claim in CLAIMS for figure in claim.figures]
    marks = re.findall(r'<span class="verdict (\w+)">([^<]+)</span>', shown)
    assert len(marks) == 2 * len(CLAIMS)
    assert all(MARKS[verdict] == mark for mark, verdict in marks)


def test_the_page_counts_the_verdicts(html: str) -> None:
    shown = html.partition("Key observations")[2].partition("<table")[0]
    counts = [int(number) for number in re.findall(r"(?:holds|part|hold|told) (\d+)", shown)]
    assert sum(counts) == 2 * len(CLAIMS)


def test_the_page_says_what_was_found_on_published_series_and_what_was_never_fitted(
    html: str,
) -> None:
    shown = html.partition("In brief")[2].partition("<table")[0]
    assert "3,247 of 3,247 forward passes" in shown
    assert "30 further published logs" in shown


def test_the_page_counts_each_kind_of_value_by_itself_in_the_order_of_what_it_shows(
    html: str,
) -> None:
    rows = html.partition("In brief")[2].partition("</table>")[0].split("<tr>")[2:]
    kinds = [re.findall(r"<td>(.*?)</td>", row)[:2] for row in rows]
    names = [kind.name for kind in KINDS]
    assert [name for name, _ in kinds] == [name for name in names if name in dict(kinds)]
    assert len(kinds) == 6
    for name, agree in kinds:
        result, _, all_values = agree.partition(" of ")
        assert result == all_values, name


def test_the_page_shows_the_calibration(html: str) -> None:
    assert "Calibration of the cost model" in html
    assert "fitted on Figures 3a, 3c, 4a, 8a" in html
    assert "gemm_flops_per_s" in html


def test_the_page_has_each_figure_with_its_files(html: str, written: Path) -> None:
    places = [html.index(f'id="{layout.slug}"') for layout in layouts() if layout.plots]
    assert places == sorted(places)
    for one in layouts():
        if one.plots:
            for suffix in ("pdf", "png", "csv"):
                assert (written / page.FIGURES / f"{one.slug}.{suffix}").stat().st_size
