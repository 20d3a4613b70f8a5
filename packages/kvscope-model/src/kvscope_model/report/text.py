"""Lines of text: columns, sizes, sentences of at most 80 columns."""

import textwrap
from collections.abc import Iterator

COLUMNS = 80


def wrapped(sentence: str) -> list[str]:
    """A sentence in lines; the lines of a list's entry are indented."""
    later = "  " if sentence.startswith("- ") else ""
    return textwrap.wrap(
        sentence, COLUMNS, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )


def aligned(rows: Iterator[list[str]]) -> list[str]:
    """Rows as lines: the first column to the left, the others to the right."""
    cells = [*rows]
    widths = [max(len(row[n]) for row in cells) for n in range(len(cells[0]))]
    return [
        "  ".join(
            cell.rjust(width) if n else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def bytes_words(size: float) -> str:
    """'1.5 GiB', '262 KiB', '96 bytes'."""
    for unit, of in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size) >= of:
            return f"{size / of:,.4g} {unit}"
    return f"{size:,.3g} bytes"
