"""What the tests of packs share."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

import real_slurm

# A property holds or it does not, however long an example takes on a machine with other work.
settings.register_profile("packs", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("packs")


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
