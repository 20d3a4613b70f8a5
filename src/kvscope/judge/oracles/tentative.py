"""Oracles of tentative tokens, one for each column of `batch` that counts tentative tokens."""

from collections.abc import Callable

from kvscope.judge.oracles.run_tables import RunTables, bad_rows, combine, counts_of
from kvscope.tables.oracle import Violations
from kvscope.tables.phases import DECODE


def oracle_of(column: str, kept: str) -> Callable[[RunTables], Violations]:
    """The oracle of a column `NAME_tokens`, and of that of its kept tokens: `NAMEs_wrong`."""
    noun = f"{column.removesuffix('_tokens')}s"

    def wrong(run: RunTables) -> Violations:
        rows = run.batch[counts_of(run.batch[column]) > 0]
        misplaced = (rows["phase"] != DECODE) | (rows[column] >= rows["scheduled_tokens"])
        most = run.most_tokens(column)
        return combine(
            bad_rows(rows, misplaced, lambda _: f"{noun} of a request that does not decode"),
            bad_rows(
                rows,
                (rows[kept] > rows[column]) | (rows[column] > most),
                lambda r: f"{r[kept]} of {r[column]} {noun} right, {most} at most",
            ),
        )

    wrong.__name__ = f"{noun}_wrong"
    wrong.__doc__ = (
        f"{noun.capitalize()} are computed behind the newest token of a request that decodes; some "
        "are right."
    )
    return wrong
