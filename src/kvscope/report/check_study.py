"""Check a study's files: its manifest against the plan, its tables against the runs as they are.

Figures and pages are not compared: their bytes depend on versions of the libraries that draw them.
`kvscope report` makes them again from the same tables.
"""

import csv
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from kvscope.base.errors import BadInput
from kvscope.base.layout import UNFINISHED
from kvscope.base.reading import open_file
from kvscope.base.scratch import scratch_directory
from kvscope.judge.differences import AGAIN, table_differences, value_differences
from kvscope.plan import manifest
from kvscope.plan.grid import expand
from kvscope.report.data import StudyData
from kvscope.report.load import load_study
from kvscope.report.pages import Page, pages_of
from kvscope.report.section import Section, sections

PRINTED = 2e-6
"""Numbers in a CSV file are equal up to this share: they have six digits at least."""


def study_complaints(directory: Path, config_dir: Path) -> Iterator[str]:
    """Differences of a study's files from its plan and its runs, one sentence each."""
    name, results = directory.name, directory.parent.parent
    try:
        yield from _plan_differences(name, results, config_dir)
        study = load_study(name, results)
    except BadInput as error:
        yield str(error)
        return
    parts: list[Section | Page] = [*sections().values(), *pages_of(study)]
    for home in (directory, directory / UNFINISHED):
        if any((home / name).exists() for part in parts for name in part.tables):
            yield from _table_differences(study, parts, home)


def _plan_differences(name: str, results: Path, config_dir: Path) -> Iterator[str]:
    """Differences of the manifest from the plan, except in the estimated resources."""
    path = manifest.manifest_path(name, results)
    planned = manifest.read(name, results)
    base = planned["base"]
    if planned["config_sha256"] != manifest.config_sha256(base, config_dir):
        yield (
            f"{path}: planned from another configuration than {config_dir} holds now, or by "
            f"another version of kvscope, so it cannot be confirmed; plan the study again"
        )
        return
    plan = expand(base, planned["overrides"], config_dir)
    needs = {entry["id"]: entry["resources"] for entry in planned["experiments"]}
    ids = [point.experiment.id for point in plan.experiments]
    contents = manifest.contents(plan, {id_: needs.get(id_, {}) for id_ in ids})
    yield from value_differences(f"{path}: ", planned, contents)


def _table_differences(
    study: StudyData, parts: Sequence[Section | Page], made: Path
) -> Iterator[str]:
    """Differences of a study's tables, of these parts, from those that its runs give now."""
    with scratch_directory() as again:
        for part in parts:
            part.write_tables(study, again)
        for name in (name for part in parts for name in part.tables):
            exists, new = (made / name).exists(), (again / name).exists()
            if exists != new:
                yield f"{made / name}: {'there' if exists else 'missing'}, {AGAIN} it is not"
            elif exists:
                differences = table_differences if name.endswith(".parquet") else _csv_differences
                yield from differences(made / name, again / name)


def _csv_differences(made: Path, again: Path) -> Iterator[str]:
    """Differences of a CSV file from another: the first row of each column."""
    header, *rows = _cells(made)
    new_header, *new_rows = _cells(again)
    if header != new_header or len(rows) != len(new_rows):
        yield (
            f"{made}: has {len(rows)} rows of {', '.join(header)}, {AGAIN} {len(new_rows)} of "
            f"{', '.join(new_header)}"
        )
        return
    reported: set[str] = set()
    for row, (old, new) in enumerate(zip(rows, new_rows, strict=True)):
        for column, value, other in zip_longest(header, old, new, fillvalue=""):
            if column not in reported and not _same(value, other):
                reported.add(column)
                yield f"{made}: {column} of row {row} is {value!r}, {AGAIN} it is {other!r}"


def _cells(path: Path) -> list[list[str]]:
    with open_file(path) as file:
        lines = file.read().decode(errors="replace").splitlines()
    return list(csv.reader(lines)) or [[]]


def _same(one: str, other: str) -> bool:
    try:
        return one == other or abs(float(one) - float(other)) <= PRINTED * abs(float(other))
    except ValueError:
        return False
