"""Numbers in sentences, durations and sizes as people write them, and words for times.

- `quantities`: `plural` of a count, `join_words`, `short_duration`; `parse_duration` and
  `parse_size` of what a user writes, with `DURATION_HELP` and `SIZE_HELP` for help texts
- `time_sources` has where times come from, `MEASURED`, `MODELED` or `REHEARSED`; `NOT_MEASURED` in
  words, `mark_of` those that were not measured; `rehearsal_refused`, an error
"""

from kvscope.base import quantities, time_sources

__all__ = ["quantities", "time_sources"]
