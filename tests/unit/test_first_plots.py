"""Of very many plots a figure has the first ones, their tables, and a remark with the number."""

import pandas as pd

from kvscope.report.figures.figure import first_plots

TABLES = {name: pd.DataFrame({"x": [1]}) for name in ("cell0", "cell1", "cell2", "marks")}
CELLS = [{"data": {"name": name}} for name in ("cell0", "cell0", "cell1", "cell2")]


def test_few_plots_are_as_they_were() -> None:
    cells, tables, remarks = first_plots(CELLS, TABLES, 4)
    assert (cells, [*tables], remarks) == (CELLS, [*TABLES], ())


def test_of_many_the_first_are_shown_with_the_tables_that_they_need() -> None:
    cells, tables, remarks = first_plots(CELLS, TABLES, 3)
    assert cells == CELLS[:3]
    assert [*tables] == ["cell0", "cell1", "marks"]
    assert remarks == ("The first 3 of 4 plots are shown.",)


def test_a_table_of_which_some_plots_are_shown_stays() -> None:
    _, tables, _ = first_plots(CELLS, TABLES, 1)
    assert [*tables] == ["cell0", "marks"]
