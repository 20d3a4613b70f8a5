"""Fixtures of a real Slurm; a conftest imports them."""

import os
from collections.abc import Iterator

import pytest

import real_slurm


@pytest.fixture(scope="session")
def slurm() -> Iterator[real_slurm.Slurm]:
    """A real Slurm, of the test session's own."""
    if lacking := real_slurm.missing():
        sentence = f"a real Slurm needs {', '.join(lacking)}: {real_slurm.INSTALL}"
        if os.environ.get("CI") == "true":
            pytest.fail(sentence)
        pytest.skip(sentence)
    with real_slurm.Slurm() as slurm:
        yield slurm


@pytest.fixture(scope="module")
def here(slurm: real_slurm.Slurm) -> Iterator[real_slurm.Slurm]:
    """The Slurm that this process's commands talk to."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in slurm.environment.items():
            patch.setenv(name, value)
        yield slurm
