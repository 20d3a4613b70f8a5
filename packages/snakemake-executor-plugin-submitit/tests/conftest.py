"""Fixtures of the tests of packs."""

from slurm_session import here, slurm  # noqa: F401
