"""What the tests of packs share."""

from slurm_session import here, slurm  # noqa: F401
