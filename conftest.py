"""What holds of all tests: how many examples a property has, and which tests `make test` runs.

`make test` runs those in a directory `unit`, and what stands for the others; of packages, only
those whose tests are due (`tests.changed_packages`).
"""

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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as thorough what needs real components, unless it is marked as representative.

    What is exhaustive is so, too, and the tests of packages that are not due.
    """
    since = config.getoption("since")
    due = changed_packages.due(ROOT, since) if since else None
    for item in items:
        directories = item.path.relative_to(ROOT).parts
        real = "unit" not in directories and not item.get_closest_marker("representative")
        unchanged = directories[0] == "packages" and due is not None and directories[1] not in due
        if real or unchanged or item.get_closest_marker("exhaustive"):
            item.add_marker(pytest.mark.thorough)
