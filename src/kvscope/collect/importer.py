"""`kvscope import`: files that others published become a run's directory.

A package registers an `Importer` in the entry-point group `kvscope.importer`, by the kind of files.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

import kvscope
from kvscope import tables
from kvscope.base import extensions, plugins
from kvscope.base.errors import BadInput
from kvscope.base.reading import sha256_of
from kvscope.tables import Table
from kvscope.tables.runfile import COMPLETE, IMPORTED_FROM, RUN_FILE, read_record

GROUP = "kvscope.importer"
PUBLISHED = "published"  # the time_source of imported runs


@dataclass(frozen=True)
class Importer:
    """Reads files of one kind.

    `write` takes the files, the run's directory and the name of a series, or None; it returns a
    summary, or '', and raises BadInput if the files are not of the kind. `has_series`: a file may
    hold several runs, of which --series names one.
    """

    write: Callable[[Sequence[Path], Path, str | None], str]
    has_series: bool = False


def kinds() -> tuple[str, ...]:
    """The kinds of files that installed packages import."""
    return plugins.names(GROUP)


def importer(kind: str) -> Importer:
    """The importer of a kind; BadInput if no installed package has it."""
    return plugins.load(GROUP, kind, Importer)


def import_run(kind: str, paths: Sequence[Path], out: Path, series: str | None = None) -> str:
    """Write the published files `paths` as a run directory; return a summary, or ''.

    Raises BadInput if the kind is unknown, the files are not of that kind, or `out` holds a run
    that was not imported.
    """
    if kind not in kinds():
        kinds_ = f"known: {', '.join(kinds()) or 'none, install a package that has some'}"
        reason = extensions.absent("importer", kind) or kinds_
        raise BadInput(f"import: unknown kind '{kind}'; {reason}")
    importer_ = importer(kind)
    if series is not None and not importer_.has_series:
        raise BadInput(f"import {kind}: --series is for kinds whose files hold several runs")
    if (out / RUN_FILE).exists() and not read_record(out).imported_from:
        raise BadInput(f"{out}: holds a run that was measured; give another directory")
    return importer_.write(paths, out, series)


def provenance(
    kind: str, paths: Sequence[Path], series: str | None = None, evidence: Collection[str] = ()
) -> dict[str, Any]:
    """Entries of run.json on the origin of an imported run and the `evidence` that it has.

    The id depends on the files' content, not on their order.
    """
    files = [{"file": path.name, "sha256": sha256_of(path)} for path in paths]
    digest = content_digest([file["sha256"] for file in files], series)
    # A stats series is named after its run, the step series adds to that name.
    stem = min((path.stem for path in paths), key=len)
    return {
        "experiment_id": "-".join(filter(None, (stem, series, digest))),
        "status": COMPLETE,
        "reason": None,
        "time_source": PUBLISHED,
        "evidence": sorted(evidence),
        IMPORTED_FROM: {"kind": kind, "series": series, "files": files},
        "versions": {"kvscope": kvscope.__version__},
    }


def imported_clock(duration_s: float, utc_ns: int | None = None) -> dict[str, Any]:
    """Entry of run.json for the clock of one repeat, whose start in UTC may not be known."""
    repeat = {"repeat": 0, "start_ns": 0, "duration_s": round(duration_s, 6)}
    return {"run_start_monotonic_ns": 0, "run_start_utc_ns": utc_ns, "repeats": [repeat]}


def write_tables(out: Path, frames: Mapping[Table, pd.DataFrame]) -> None:
    """Write the host tables of a run; those that are not given are empty.

    run.json goes first, so that no record vouches for tables while they change.
    """
    (out / RUN_FILE).unlink(missing_ok=True)
    for table in tables.HOST_TABLES:
        if table not in tables.OF_SOME_RUNS:
            tables.write(table, frames.get(table, table.empty()), out / table.file)


def content_digest(hashes: Sequence[str], series: str | None) -> str:
    """The end of the id of published files with these SHA-256, in whatever order."""
    return hashlib.sha256(f"{' '.join(sorted(hashes))} {series}".encode()).hexdigest()[:10]
