"""Numbers in sentences, durations and sizes as people write them, and words for times.

`time_sources` has where times come from, and what is to be said of those that were not measured.
"""

from kvscope import time_sources
from kvscope.quantities import parse_duration, parse_size, plural, short_duration

__all__ = ["parse_duration", "parse_size", "plural", "short_duration", "time_sources"]
