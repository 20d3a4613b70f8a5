"""The records of a run, or of one repeat of it, for analysis.

- `read_records` of a run's directory gives `Records`, a `RunView`; `reasons_of` them, why the
  run is not valid
- `planned`: `experiment_of`, the experiment of a run; `confirm_settings`, which refuses others
- `pass_durations`: `PassDurations`, what the passes of a run were expected to take
- `read_flushes` of a file of KV events; `traced`, their table: `traced_parts` of a run, and
  `read_events`, which gives `Events`
- `due`: `decode_due_s`, how long `decode_passes` were due to take
"""

from kvscope import due
from kvscope.analyse import events as traced
from kvscope.analyse import pass_durations, planned
from kvscope.analyse.records import Records, read_records
from kvscope.analyse.run_view import RunView
from kvscope.analyse.validity import reasons_of
from kvscope.collect.kv.flushes import read_flushes

__all__ = [
    "Records",
    "RunView",
    "due",
    "pass_durations",
    "planned",
    "read_flushes",
    "read_records",
    "reasons_of",
    "traced",
]
