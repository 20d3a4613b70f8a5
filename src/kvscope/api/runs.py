"""The records of a run, or of one repeat of it, for analysis.

- `read_records` of a run's directory gives `Records`, a `RunView` and so `RunData`; `reasons_of`
  them, why the run is not valid; a function of a `RunView` that is `kept` is computed once for each
- `planned`: `experiment_of`, the experiment of a run; `confirm_settings`, which refuses others
- `replay`: `watch` replays a repeat, and a `Watcher` sees the state of the `Twin` of its engine,
  its `Request`s and its `memory`; `rules` are the `Rules` of a run's engine
- `pass_durations`: `PassDurations`, what the passes of a run were expected to take; its `due` has
  `decode_due_s`, how long `decode_passes` were due to take
- `traces` of KV events: a `TraceReader`, which a package registers; the `Account` of its oracles;
  for its tables `write_batches`, and `prefetch`, which makes the next items in a thread;
  `require_times` of a run, `instants_ns` and `duration_ns` of its seconds
- `json_values`, which refuse others: `require_list`, `require_integer`, `require_integers`,
  `require_number`, `require_choice`; `all_within` bounds; `to_int64` of a list
"""

from kvscope.collect import json_values, traces
from kvscope.judge import planned
from kvscope.judge.oracles import replay
from kvscope.judge.records import Records, read_records
from kvscope.judge.validity import reasons_of
from kvscope.tables import pass_durations
from kvscope.tables.run_data import RunData
from kvscope.tables.run_view import RunView, kept

__all__ = [
    "Records",
    "RunData",
    "RunView",
    "json_values",
    "kept",
    "pass_durations",
    "planned",
    "read_records",
    "reasons_of",
    "replay",
    "traces",
]
