"""Generated tables of this package's documents: `python -m kvscope.cli.docs DIRECTORY`."""

from kvscope.api.documents import markdown
from kvscope_paper.published.fitted import fitted_figures


def fitted_figures_table() -> str:
    """How well the fitted figures are met, a row each."""
    rows = [
        (
            figure,
            str(one.times),
            f"{one.median_error:.1%}",
            f"{one.largest_error:.1%}",
            "–" if one.left_out is None else f"{one.left_out:.1%}",
        )
        for figure, one in fitted_figures().items()
    ]
    return markdown(("figure", "times", "median error", "largest", "left out"), rows)
