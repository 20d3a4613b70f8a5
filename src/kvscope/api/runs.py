"""The records of a run, or of one repeat of it, for analysis.

- `read_records` of a run's directory gives `Records`, a `RunView`; `reasons_of` them, why the
  run is not valid; a function of a `RunView` that is `kept` is computed once for each
- `planned`: `experiment_of`, the experiment of a run; `confirm_settings`, which refuses others
- `Metric`, a number of a run, as packages register them
- `pass_durations`: `PassDurations`, what the passes of a run were expected to take
- `read_flushes` of a file of KV events
- `due`: `decode_due_s`, how long `decode_passes` were due to take
"""

from kvscope import due
from kvscope.analyse import pass_durations, planned
from kvscope.analyse.metric import Metric
from kvscope.analyse.records import Records, read_records
from kvscope.analyse.run_view import RunView, kept
from kvscope.analyse.validity import reasons_of
from kvscope.collect.kv.flushes import read_flushes

__all__ = [
    "Metric",
    "Records",
    "RunView",
    "due",
    "kept",
    "pass_durations",
    "planned",
    "read_flushes",
    "read_records",
    "reasons_of",
]
