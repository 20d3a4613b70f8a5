"""Generated tables of this package's documents: `python -m kvscope.cli.docs DIRECTORY`."""

from kvscope.api.documents import markdown
from kvscope_paper.published.fitted import fitted_figures


def fitted_figures_table() -> str:
    """Table of the fitted figures' errors."""
    rows = [
        (
            figure,
            str(errors.times),
            f"{errors.median_error:.1%}",
            f"{errors.largest_error:.1%}",
            "–" if errors.left_out is None else f"{errors.left_out:.1%}",
        )
        for figure, errors in fitted_figures().items()
    ]
    return markdown(("figure", "times", "median error", "largest", "left out"), rows)
