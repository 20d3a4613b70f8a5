"""Errors of the modeled A100 against the published times, figure by figure."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvscope_paper.agreement import FITTED, STALLED
from kvscope_paper.comparison import Comparison, by_figure
from kvscope_paper.predictive import Errors, coverage, is_modeled_time
from kvscope_paper.published.fitted import fitted_figures


def figure_errors(found: Sequence[Comparison], errors: Errors) -> list[Mapping[str, Any]]:
    """Errors of the modeled A100 for each published table of times, as `by_figure` has them.

    Times with a stall of the host are left out. `again`: the experiments are a fitted figure's,
    `fitted`: its numbers are fitted on the figure; `left_out` is then the median error of the
    figure's times by a fit to the other figures, else None, and where these do not tell.
    `coverage` is that of the figure's interval over the left-out `errors`, in its first table: None
    in others and without any.
    """
    fitted = fitted_figures()
    tables = [*by_figure([c for c in found if is_modeled_time(c) and c.kind is not STALLED])]
    first = {table["figure"]: table["title"] for table in reversed(tables)}
    return [
        figure
        | {
            "fitted": own_fit is not None,
            "again": own_fit is None and figure["points"][0].kind is FITTED,
            "left_out": own_fit and own_fit.left_out,
            "coverage": coverage(errors, [figure["figure"]])
            if first[figure["figure"]] == figure["title"]
            else None,
        }
        for figure in tables
        for own_fit in [fitted.get(figure["figure"])]
    ]
