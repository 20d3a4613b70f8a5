"""What the tests of packs share."""

from hypothesis import HealthCheck, settings

from slurm_session import here, slurm  # noqa: F401

# A property holds or it does not, however long an example takes on a machine with other work.
settings.register_profile("packs", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("packs")
