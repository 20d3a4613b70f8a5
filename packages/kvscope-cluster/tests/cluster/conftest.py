"""A real Slurm, as the packages' tests have it."""

from slurm_session import here, slurm  # noqa: F401
