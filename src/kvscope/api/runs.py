"""The records of a run, or of one repeat of it, for analysis.

- `traced`, KV events: `traced_parts` of a run, and `read_events`, which gives `Events`
- `due`: `decode_due_s`, how long `decode_passes` were due to take
"""

from kvscope import due
from kvscope.analyse import events as traced
from kvscope.analyse.planned import confirm_settings
from kvscope.analyse.records import read_records
from kvscope.analyse.run_view import RunView

__all__ = ["RunView", "confirm_settings", "due", "read_records", "traced"]
