"""Which tests `make test` runs: tests/unit, and of the other directories what stands for them."""

from pathlib import Path

import pytest

UNIT = Path(__file__).parent / "tests" / "unit"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as thorough what needs real components, unless it is marked as representative."""
    for item in items:
        if UNIT not in item.path.parents and not item.get_closest_marker("representative"):
            item.add_marker(pytest.mark.thorough)
