"""The page 'The paper, re-examined', beside a study's report."""

import math
from pathlib import Path
from typing import Any

from markupsafe import Markup

from kvscope.api.files import files
from kvscope.api.machine import __version__
from kvscope.api.pages import pages, paper, render
from kvscope.api.sections import StudyData
from kvscope.api.wording import wording
from kvscope.api.words import time_sources
from kvscope_model.hardware import hardware as data
from kvscope_paper.adaptive import adaptive_regret
from kvscope_paper.claims.registry import judged
from kvscope_paper.comparison import (
    COMPARISON_FILE,
    Comparison,
    by_figure,
    by_kind,
    compare,
    write_comparison,
)
from kvscope_paper.figure_errors import figure_errors
from kvscope_paper.further import POLICIES, further
from kvscope_paper.layouts import layouts
from kvscope_paper.plots import Figure, figures
from kvscope_paper.predictive import (
    HARDWARE,
    coverage,
    left_out_errors,
    spread,
    with_intervals,
)
from kvscope_paper.published.repeats import repeat_limit, repeats

HERE = Path(__file__).parent
PAGE = "paper.html"
FIGURES = "paper"  # the directory of its figures, beside the page
STUDY = "paper"  # which the page is of
LARGER = 1.4  # a figure on the page than in print


def write_tables(study: StudyData, directory: Path) -> None:
    """Write comparison.csv, if the study has experiments of the paper's, and none is rehearsed."""
    if not study.rehearsed and (comparisons := _compared(study)):
        write_comparison(comparisons, directory)


def _compared(study: StudyData) -> list[Comparison]:
    return with_intervals(compare(study))


def write_paper(study: StudyData, directory: Path) -> None:
    """Write paper.html, comparison.csv and figures, if the study has experiments of the paper.

    BadInput if one of them was rehearsed: that is no result to hold beside published ones.
    """
    PAPER_PAGE.retire(directory)
    if study.rehearsed:
        run = study.rehearsed[0].directory
        raise time_sources.rehearsal_refused(f"{run} of study {study.name}", PAGE)
    comparisons = _compared(study)
    if not comparisons:
        return
    write_comparison(comparisons, directory)
    errors = left_out_errors(comparisons)
    template = pages.load_template(
        HERE / "paper.html.j2", percent=wording.percent, number=wording.number_text
    )
    text = template.render(
        study=study,
        version=__version__,
        claims=judged(comparisons, study.complete),
        devices=list(dict.fromkeys(comparison.device for comparison in comparisons)),
        drawn=write_figures(list(figures(layouts(), comparisons, study)), directory),
        tables=list(by_figure(comparisons)),
        kinds=by_kind(comparisons),
        repeats=repeats(),
        repeat_limit=repeat_limit(),
        calibration=figure_errors(comparisons, errors),
        coverage=coverage(errors),
        spread=spread(errors),
        expand=math.exp,
        numbers=list(data.read(HARDWARE).fitted()),
        policies=POLICIES,
        further=list(further(study, comparisons)),
        regret=adaptive_regret(study),
        paper=paper.PAPER.citation,
        csv=COMPARISON_FILE,
        directory=FIGURES,
        styles=Markup(pages.styles()),
    )
    files.write_text(directory / PAGE, text)


PAPER_PAGE = pages.Page(
    file=PAGE,
    title="The paper, figure by figure",
    summary="its figures and claims beside the results of this study.",
    fits=lambda study: study.base == STUDY,
    write=write_paper,
    write_tables=write_tables,
    tables={COMPARISON_FILE: "the published values beside these"},
    directories=(FIGURES,),
)


def write_figures(drawn: list[Figure], directory: Path) -> list[dict[str, Any]]:
    """Write each figure's PDF, PNG and data; give what the page shows of it."""
    parts = {
        f"{figure.layout.slug}{'' if place == 0 else f'-{place + 1}'}": drawing
        for figure in drawn
        for place, drawing in enumerate(figure.drawings)
    }
    prints = render.print_figures(parts)
    for name, printed in prints.items():
        printed.write(directory / FIGURES, name)
    shown = []
    for figure in drawn:
        slug = figure.layout.slug
        if figure.found:
            write_comparison(list(figure.found), directory, f"{FIGURES}/{slug}.csv")
        names = [name for name in parts if name == slug or name.startswith(f"{slug}-")]
        shown.append(
            {
                "layout": figure.layout,
                "images": [
                    (name, Markup(prints[name].url), round(LARGER * prints[name].width_px))
                    for name in names
                ],
                "tables": list(by_figure(figure.found)),
            }
        )
    return shown
