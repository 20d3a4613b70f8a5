"""Which tests `make test` runs: those in a directory `unit`, and what stands for the others."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as thorough what needs real components, unless it is marked as representative."""
    for item in items:
        directories = item.path.relative_to(ROOT).parts
        if "unit" not in directories and not item.get_closest_marker("representative"):
            item.add_marker(pytest.mark.thorough)
