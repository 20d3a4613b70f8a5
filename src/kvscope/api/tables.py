"""The tables of a run, and the words that their columns hold.

`tables` declares each, and reads and writes them. `copies` has directions and kinds of transfers,
`kv_plan` KV groups, `passes` the phases of forward passes and requests.
"""

from kvscope import copies, kv_plan, passes, tables

__all__ = ["copies", "kv_plan", "passes", "tables"]
