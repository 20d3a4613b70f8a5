"""A command, kinds of foreign files, a page and a table of a document."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from kvscope.api.collecting import foreign, importer
from kvscope.api.commands import argument, command
from kvscope.api.pages import pages
from kvscope.api.sections import StudyData


@command(("ME",), argument("name"))
def greet(given: argparse.Namespace) -> int:
    """Greet somebody: with a word."""
    print(f"hello {given.name}")
    return 0


def copy_lines(paths: Sequence[Path], out: Path, series: str | None) -> str:
    """A directory with the lines of all files."""
    lines = [line for path in paths for line in path.read_text().splitlines()]
    out.mkdir(parents=True)
    (out / "lines.txt").write_text("\n".join(lines))
    return f"{len(lines)} lines of {series}"


LINES = importer.Importer(copy_lines, has_series=True)


def write_table(study: StudyData, directory: Path) -> None:
    """The title's words, a row each."""
    words = "".join(f"{word}\n" for word in study.title.split())
    (directory / "words.csv").write_text(f"word\n{words}")


def write_page(study: StudyData, directory: Path) -> None:
    """The page with its table."""
    (directory / "words.html").write_text(study.title)
    write_table(study, directory)


WORDS = pages.Page(
    file="words.html",
    title="Words",
    summary="those of the title.",
    fits=lambda study: study.name == "fake",
    write=write_page,
    write_tables=write_table,
    tables={"words.csv": "the words of the title"},
)


def unpack(directory: Path, stretch: foreign.Stretch) -> list[str]:
    """Put a run's files, which are in a directory of their own, where a run has them."""
    files = sorted((directory / "packed").iterdir())
    for path in files:
        path.rename(directory / path.name)
    return [f"{len(files)} files were packed"]


PACKED = foreign.Collector(lambda directory: (directory / "packed").is_dir(), unpack)


def table() -> str:
    """A line of a document."""
    return "toys\n"
