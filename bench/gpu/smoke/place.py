"""Directory of the steps' results, and whether the steps are rehearsed."""

import json
import os
from pathlib import Path
from typing import Any

WORK = Path(os.environ.get("SMOKE_WORK", "/tmp/smoke"))
REHEARSED = os.environ.get("SMOKE_REHEARSED") == "1"
ROOT = Path(__file__).parents[3]
DEVICE = "cuda"
PASSED, FAILED, NO_TIME = "passed", "failed", "skipped: no time left"  # outcomes


def store(name: str, found: Any) -> None:
    """Write what a step has found so far: a step that is killed leaves it."""
    text = json.dumps(found, indent=1, default=str) + "\n"
    unfinished = WORK / f"{name}.new"
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(WORK / f"{name}.json")


def stored(name: str) -> Any:
    """Stored result of a step; None if it stored nothing."""
    path = WORK / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def sentence(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]
