"""Records of a run, made of files that something else wrote.

`collect_run` makes the further tables of a run.

- `foreign`: a `Collector` recognises a directory and makes its records, of a `Stretch`
- `importer`: `Importer`, which makes a run's directory of files that others published; for that
  `write_tables`, `provenance` and `imported_clock` of run.json, and `PUBLISHED`, where times come
  from
- `recorder`, which makes tables of an engine's rows: `follow` of a `RepeatContext` and of a
  `RequestState` for each request that was there before, to `RepeatTables`, and `Rows` of a table
  that is too large for a frame; `kv_groups_table`;
  `NANOSECONDS` in seconds
- `stalls`: `find_stalls`, the passes that a stalled host prolonged
"""

from kvscope.collect import foreign, importer
from kvscope.collect.collector import collect_run
from kvscope.run import recorder
from kvscope.tables import stalls

__all__ = [
    "collect_run",
    "foreign",
    "importer",
    "recorder",
    "stalls",
]
