"""What the tests of packs share."""

from hypothesis import HealthCheck, settings

# A property holds or it does not, however long an example takes on a machine with other work.
settings.register_profile("packs", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("packs")
