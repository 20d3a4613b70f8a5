"""Whether published times lie where the model's errors in other figures say, as it is run here."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from kvscope.cli import batch
from kvscope.plan.grid import expand
from kvscope.report.load import load_directories
from kvscope.run.display import Line
from kvscope_paper.comparison import Comparison, compare
from kvscope_paper.predictive import Coverage, coverage, left_out_errors, with_intervals
from tests.conftest import Require

ROOT = Path(__file__).parents[4]
GRID = "3b"  # of what the model was not fitted on, most values in a minute

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, require: Require) -> list[Comparison]:
    """Figure 3b as the modeled A100 has it, beside the published values."""
    require("vLLM", find_spec("vllm") is not None, "run `make env`")
    planned = expand("paper", ["device=modeled"], ROOT / "config").experiments
    own = [point.experiment for point in planned if point.grid == GRID]
    results = tmp_path_factory.mktemp("results")
    jobs = [batch.Job(point, results / point.id, force=False, tables=True) for point in own]
    with Line(sys.stderr, None) as line:
        assert batch.run_all(jobs, line) == 0
    return with_intervals(compare(load_directories([job.directory for job in jobs])))


@pytest.fixture(scope="module")
def covered(found: list[Comparison]) -> Coverage:
    """The coverage of 3b, and by fits without them of 3a and 3c."""
    covered = coverage(left_out_errors(found))
    assert covered is not None
    return covered


def test_intervals_hold_nineteen_of_twenty_left_out_times(covered: Coverage) -> None:
    assert covered.times == 119 + 30 + 64
    assert 0.90 <= covered.share <= 0.98


def test_no_interval_is_wider_than_the_errors_make_it(covered: Coverage) -> None:
    assert covered.median_width <= 2 * covered.error_95


def test_every_modeled_time_has_an_interval_with_it_in(found: list[Comparison]) -> None:
    times = [comparison for comparison in found if comparison.unit == "tokens/s"]
    assert len(times) == 64
    assert all(time.expected_low < time.as_timed < time.expected_high for time in times)
