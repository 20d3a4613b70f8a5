"""A table of another package: what each request of a pass has computed.

With a metric of it, and an oracle.
"""

from typing import Any

import pandas as pd

from kvscope.judge.oracles.run_tables import RunTables
from kvscope.metrics.metric import Metric
from kvscope.tables.added import AddedTable
from kvscope.tables.column import F64, I32, Table, derived, told, witnessed
from kvscope.tables.columns import REPEAT, REQUEST, STEP
from kvscope.tables.oracle import Need, Oracle, Violations, violations

TABLE = Table(
    "toy_requests",
    "one request of a pass",
    (
        REPEAT,
        STEP,
        REQUEST,
        told("priority", I32, "the priority that vLLM gives it, which nothing follows from"),
        witnessed("computed_tokens", I32, "tokens in the cache once the pass is scheduled"),
        derived("computed_share", F64, "part of the tokens of all requests of the pass"),
    ),
)


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """`computed_share` follows from the rows of a pass."""
    together = rows.groupby(["repeat", "step"])["computed_tokens"].transform("sum")
    return rows.assign(computed_share=rows["computed_tokens"] / together)


def follows(repeat: Any) -> pd.DataFrame:
    """`computed_tokens` follows from the context of a request and its part of the pass."""
    rows = repeat.batch[["step", "request_id"]]
    return rows.assign(
        computed_tokens=repeat.batch["context_tokens"] + repeat.batch["scheduled_tokens"]
    )


def _largest(repeat: Any) -> float:
    return float(repeat.added(TABLE.name)["computed_share"].max())


ADDED = AddedTable(TABLE, "toy_recorder:Requests", derive, follows)
LARGEST = Metric(
    name="toy_largest_share",
    unit="",
    heading="Largest share of a request",
    formula="max(toy_requests.computed_share)",
    of=_largest,
    better=-1,
    display="",
    column=36,
)


def priority_too_high(run: RunTables) -> Violations:
    """No request has a priority of 10,000 or more."""
    rows = run.records.added(TABLE.name)
    places = rows.index[rows["priority"] >= 10_000].to_numpy()
    return violations(places, lambda at: f"request {rows['request_id'][at]} in row {at}")


PRIORITIES: Oracle[RunTables] = Oracle(
    priority_too_high,
    Need(f"table {TABLE.name}", lambda run: TABLE.name in run.records.added_names),
)
