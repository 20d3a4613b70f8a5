"""Numbers in sentences, durations and sizes as people write them, and words for times.

`time_sources` has where times come from, `MEASURED` or `REHEARSED`, and `mark_of` those that were
not measured.
"""

from kvscope import time_sources
from kvscope.quantities import parse_duration, parse_size, plural, short_duration

__all__ = ["parse_duration", "parse_size", "plural", "short_duration", "time_sources"]
