"""The import's one entry: published files of a known kind become a run directory."""

from collections.abc import Sequence
from pathlib import Path

from kvscope.collect.unboxkv.log_import import import_log
from kvscope.collect.unboxkv.provenance import (
    IMPORT_KINDS,
    UNBOXKV_LOG,
    UNBOXKV_SERIES,
    UNBOXKV_TRACE,
)
from kvscope.collect.unboxkv.series_import import import_series
from kvscope.collect.unboxkv.trace_import import import_trace
from kvscope.errors import BadInput
from kvscope.runfile import IMPORTED_FROM, RUN_FILE, read_run


def import_run(
    kind: str, paths: Sequence[Path], out: Path, series: str | None = None
) -> str | None:
    """Write the published files `paths` as a run directory; return a summary of a log or a trace.

    Raises BadInput if the kind is unknown, the files are not of that kind, or `out` holds a run
    that was not imported.
    """
    if kind not in IMPORT_KINDS:
        raise BadInput(f"import: unknown kind '{kind}'; known: {', '.join(IMPORT_KINDS)}")
    if kind != UNBOXKV_SERIES and series is not None:
        raise BadInput(f"import {kind}: --series is for {UNBOXKV_SERIES}")
    if kind == UNBOXKV_LOG and len(paths) != 1:
        raise BadInput(f"import {kind}: takes one log, not {len(paths)} files")
    if (out / RUN_FILE).exists() and IMPORTED_FROM not in read_run(out):
        raise BadInput(f"{out}: holds a run that was measured; give another directory")
    if kind == UNBOXKV_LOG:
        return import_log(paths[0], out)
    if kind == UNBOXKV_TRACE:
        return import_trace(paths, out)
    import_series(paths, out, series)
    return None
