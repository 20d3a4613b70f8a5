"""The tables of a run, and the words that their columns hold.

- `tables`: a `Table` by its name in upper case, `HOST_TABLES`, `to_arrow`, `write`
- `copies`: directions, `IN` and `OUT`, and `KV`, a kind of transfers
- `passes`: phases, as `PREFILL`
- `kv_plan`: `KvGroup`, `has_one_block_table`
"""

from kvscope import copies, kv_plan, passes, tables

__all__ = ["copies", "kv_plan", "passes", "tables"]
