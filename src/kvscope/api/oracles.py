"""Oracles of a run's tables, which a package registers.

- `oracle`: an `Oracle` of a function that finds `Violations`, `NONE` or some, with its `Need`;
  `violations` of places
- `run_tables`: `RunTables`, which the function is given; `bad_rows` makes violations of rows,
  `combine` one of several; `previous`, of each row the value before; `NANOSECONDS` in seconds
- `virtual`, for devices that compute nothing: `differs`, where times are not the expected ones
  within `TOLERANCE_S`, and `wrong_time` of it; `repeats_apart` and `takes_no_scheduling`, which
  hold on a virtual clock
"""

from kvscope.judge.oracles import run_tables, virtual
from kvscope.tables import oracle

__all__ = ["oracle", "run_tables", "virtual"]
