"""Records of a run, made of files that something else wrote.

A `Collector` recognises a directory and makes its records.

- `recorder`, which makes tables of an engine's rows: `replay` of a `RepeatContext` and of a
  `RequestState` for each request that was there before, to `RepeatTables`; `kv_groups_table`;
  `NANOSECONDS` in seconds
- `stalls`: `find_stalls`, the passes that a stalled host prolonged
- `evidence`: `of_recording`, what the records of a server hold
- `runfile`, run.json: `write_run`, `file_records`, the names `RUN_FILE`, `NSYS_EXPORT` and
  `NSYS_REPORT`, the words `COMPLETE` and `RECORDED`
"""

from kvscope import evidence, runfile, stalls
from kvscope.collect.foreign import Collector
from kvscope.run import recorder

__all__ = ["Collector", "evidence", "recorder", "runfile", "stalls"]
