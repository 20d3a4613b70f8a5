"""The page of a run of the modeled device."""

from pathlib import Path

from kvscope.plan.devices.dry import Dry
from tests.unit.test_report_page import page_on


def test_its_times_are_called_modeled_and_mean_something(tmp_path: Path) -> None:
    page = page_on("modeled", tmp_path)
    assert '<span class="badge modeled">MODELED</span>' in page
    assert Dry.caveat not in page
