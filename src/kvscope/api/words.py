"""Numbers in sentences, durations and sizes as people write them, and words for times.

`time_sources` has where times come from, `MEASURED`, `MODELED` or `REHEARSED`; `mark_of` those that
were not measured; `rehearsal_refused`, an error.
"""

from kvscope import time_sources
from kvscope.quantities import join_words, parse_duration, parse_size, plural, short_duration

__all__ = ["join_words", "parse_duration", "parse_size", "plural", "short_duration", "time_sources"]
