"""What run.json says of a run that others published: where it came from."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kvscope
from kvscope.files import sha256_of
from kvscope.runfile import COMPLETE, IMPORTED_FROM

UNBOXKV_LOG, UNBOXKV_SERIES, UNBOXKV_TRACE = IMPORT_KINDS = (
    "unboxkv",
    "unboxkv-series",
    "unboxkv-trace",
)
PUBLISHED = "published"  # the time_source of imported runs


def provenance(kind: str, paths: Sequence[Path], series: str | None = None) -> dict[str, Any]:
    """Where it came from; the id depends on the files' content, not on their order."""
    files = [{"file": path.name, "sha256": sha256_of(path)} for path in paths]
    digest = content_digest([file["sha256"] for file in files], series)
    # A stats series is named after its run, the step series adds to that name.
    stem = min((path.stem for path in paths), key=len)
    return {
        "experiment_id": "-".join(filter(None, (stem, series, digest))),
        "status": COMPLETE,
        "reason": None,
        "time_source": PUBLISHED,
        IMPORTED_FROM: {"kind": kind, "series": series, "files": files},
        "versions": {"kvscope": kvscope.__version__},
    }


def content_digest(hashes: Sequence[str], series: str | None) -> str:
    """The end of the id of published files with these SHA-256, in whatever order."""
    return hashlib.sha256(f"{' '.join(sorted(hashes))} {series}".encode()).hexdigest()[:10]
