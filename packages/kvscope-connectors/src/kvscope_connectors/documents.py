"""Generated tables of docs/CONNECTORS.md."""

from kvscope.api.documents import markdown
from kvscope_connectors.metrics import METRICS
from kvscope_connectors.oracles import MALFORMED, TIMES, WAITS
from kvscope_connectors.table import JOBS

BETTER = {1: "more", -1: "less", 0: "–"}


def jobs_table() -> str:
    """The columns of the table of jobs."""
    rows = [
        (
            f"`{column.name}`",
            str(column.type),
            column.role,
            ", ".join(column.evidence) or "–",
            column.meaning,
        )
        for column in JOBS.table.columns
    ]
    return markdown(("column", "type", "role", "evidence", "meaning"), rows)


def metrics_table() -> str:
    """The metrics of offloading."""
    rows = [
        (f"`{metric.name}`", metric.unit, BETTER[metric.better], metric.formula)
        for metric in METRICS
    ]
    return markdown(("metric", "unit", "better", "formula"), rows)


def oracles_table() -> str:
    """The oracles of jobs."""
    rows = [
        (f"`{oracle.name}`", " ".join(filter(None, (oracle.sentence, oracle.details))))
        for oracle in (MALFORMED, TIMES, WAITS)
    ]
    return markdown(("reason", "what must hold"), rows)
