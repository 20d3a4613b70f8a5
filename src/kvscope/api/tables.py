"""The tables of a run, and the words that their columns hold.

- `tables`: a `Table` by its name in upper case, `HOST_TABLES`, `to_arrow`, `write`
- `actions`: `action` of a name; `RECOMPUTE` and `SWAP`
- `copies`: directions, `IN` and `OUT`; `KV`, a kind of transfers; `LOG`, a clock of copies
- `passes`: phases, `PREFILL`, `DECODE` and `MIXED`
- `kv_events`: kinds of accesses by code, `K_READ`, `V_READ`, `K_WRITE`, `V_WRITE`, with their names
  in `KINDS`; of a flush its kernels `WRITE` and `ATTENTION`, its `COLUMNS` and `COLUMNS_VERSION`,
  and `ALL_HEADS`
- `kv_plan`: `KvGroup`, `has_one_block_table`
"""

from kvscope import actions, copies, kv_plan, passes, tables
from kvscope import events as kv_events

__all__ = ["actions", "copies", "kv_events", "kv_plan", "passes", "tables"]
