"""Generated tables of documents on KV events."""

from itertools import groupby

from kvscope.api.documents import markdown
from kvscope_kernels.analyse.access_metrics import METRICS
from kvscope_kernels.figures import access_gaps, access_metrics, access_pattern, kv_accesses
from kvscope_kernels.oracles.registry import ALL_ORACLES

FIGURES = {
    "access_pattern": access_pattern.FIGURE,
    "access_gaps": access_gaps.FIGURE,
    "access_metrics": access_metrics.FIGURE,
    "kv_accesses": kv_accesses.FIGURE,
}

BETTER = {1: "more", -1: "less", 0: "–"}


def metrics_table() -> str:
    """The metrics of KV events; those of one formula (median, p95) share a row."""
    rows = [
        (", ".join(f"`{metric.name}`" for metric in same), unit, BETTER[better], formula, needs)
        for (unit, better, formula, needs), same in groupby(
            METRICS, key=lambda m: (m.unit, m.better, m.formula, m.needs_all or "–")
        )
    ]
    return markdown(("metric", "unit", "better", "formula", "needs all"), rows)


def figures_table() -> str:
    """The figures of KV events, in the order of the page."""
    rows = [(f"`{name}`", figure.title, figure.axes) for name, figure in FIGURES.items()]
    return markdown(("figure", "shows", "declared axes"), rows)


def oracles_table() -> str:
    """The oracles of KV events, in the order of the checklist."""
    rows = [
        (f"`{oracle.name}`", " ".join(filter(None, (oracle.sentence, oracle.details))))
        for oracle in ALL_ORACLES
    ]
    return markdown(("reason", "what must hold"), rows)
