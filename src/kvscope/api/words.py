"""Numbers in sentences."""

from kvscope.quantities import plural, short_duration

__all__ = ["plural", "short_duration"]
