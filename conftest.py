"""Settings of all tests: the examples of a property, and the tests that `make test` runs.

`make test` runs the tests in directories `unit`, and representative tests of other directories. It
runs tests of packages only if they are due (`tests.changed_packages`).
"""

from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import changed_packages

# A property holds or it does not, however long an example takes on a machine with other work.
# A test whose example takes a process or a composition has fewer, and says so with @settings.
SLOW = [HealthCheck.too_slow]
settings.register_profile("kvscope", deadline=None, max_examples=60, suppress_health_check=SLOW)
settings.load_profile("kvscope")

ROOT = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--since COMMIT` of the Makefile."""
    parser.getgroup("kvscope").addoption(
        "--since",
        metavar="COMMIT",
        help="the tests of packages that do not differ from this commit are thorough ones",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where no thorough test runs, files that have no other are not even imported."""
    if config.option.markexpr != "not thorough":
        return None
    waits = _waits(collection_path, config.getoption("since"))
    return True if waits or _has_thorough_ones_alone(collection_path) else None


def _has_thorough_ones_alone(path: Path) -> bool:
    of_unit = "unit" in path.relative_to(ROOT).parts
    is_file = path.suffix == ".py" and path.name.startswith("test_")
    return is_file and not of_unit and "representative" not in path.read_text(encoding="utf-8")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as thorough what needs real components, unless it is marked as representative.

    What is exhaustive is so, too, and the tests of packages that are not due.
    """
    since = config.getoption("since")
    for item in items:
        real = "unit" not in item.path.relative_to(ROOT).parts
        stands_for_others = item.get_closest_marker("representative")
        exhaustive = item.get_closest_marker("exhaustive")
        if (real and not stands_for_others) or exhaustive or _waits(item.path, since):
            item.add_marker(pytest.mark.thorough)


def _waits(path: Path, since: str | None) -> bool:
    """Whether a path is of a package whose tests are not due."""
    parts = path.relative_to(ROOT).parts
    of_package = parts[:1] == ("packages",) and len(parts) > 1
    return of_package and bool(since) and parts[1] not in _due(str(since))


@cache
def _due(since: str) -> set[str]:
    return changed_packages.due(ROOT, since)
