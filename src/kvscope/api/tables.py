"""The tables of a run and its run.json, and the words that they hold.

- `tables`: a `Table` by its name in upper case, `HOST_TABLES`; `to_arrow`, `write`,
  `write_parts`, `read`, `check_file`
- `evidence`, what a run has: `ALL` kinds, among them `PASSES`, `CLOCK`, `ORDER`, `STALLS`, `JOBS`,
  `TOKEN_IDS` and `KV_GROUPS`; `of_recording`, what the records of a server hold
- `runfile`, run.json: `read_record` and `write_run`, `file_records`, `is_complete`, `run_sha256`;
  the names `RUN_FILE`, `KERNEL_EVENTS`, `SPOOL`, `NSYS_EXPORT` and `NSYS_REPORT`, the key
  `TRACING`, the words `COMPLETE` and `RECORDED`
- `actions`: `Action`, and `action` of a name; `RECOMPUTE` and `SWAP`
- `added`, tables of packages: a `JobTable`, of copies beside the passes, and `job_table`, that of
  an installed package
- `copies`: `DIRECTIONS`, `IN` and `OUT`; kinds of transfers, `KV` and `INPUTS`;
  clocks of copies, `HOST_CLOCK`, `LOG` and `VIRTUAL_CLOCK`; `FASTEST_BYTES_PER_S` of any
- `passes`: phases, `PREFILL`, `DECODE` and `MIXED`, all in `PASS_PHASES`, those of a request in
  `REQUEST_PHASES`; `phase_of_requests` in a pass
- `kv_kinds`: `KvKind`, a kind of KV group; its subclasses `Window`, `Chunk`, `State`; `Count`;
  `kind_of` a name of vLLM
- `kv_plan`: `KvGroup`; `keeps_state`, `has_one_block_table`, `unless_one_block_table`
- `rebuilds`: `rebuild_parts`, in which K and V are made of a request's activations
"""

from kvscope import tables
from kvscope.plan import actions
from kvscope.tables import added, copies, evidence, kv_kinds, kv_plan, rebuilds, runfile
from kvscope.tables import phases as passes

__all__ = [
    "actions",
    "added",
    "copies",
    "evidence",
    "kv_kinds",
    "kv_plan",
    "passes",
    "rebuilds",
    "runfile",
    "tables",
]
