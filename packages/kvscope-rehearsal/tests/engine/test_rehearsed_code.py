"""kvscope's code for GPUs, part by part on a rehearsed GPU, without an engine."""

from pathlib import Path

import pytest

import programs
from rehearsals import outcomes_of
from tests.conftest import Require

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, require: Require) -> dict[str, str | None]:
    """Outcome of each of `programs`."""
    return outcomes_of(Path(programs.__file__), tmp_path_factory.mktemp("node"), require)


@pytest.mark.parametrize("name", [*programs.PROGRAMS])
def test_program(outcomes: dict[str, str | None], name: str) -> None:
    assert outcomes[name] is None, outcomes[name]
