"""Records of runs by hand: only what a test is about."""

from typing import Any

from kvscope.tables.runschema import RunRecord


def facts_of(**keys: Any) -> dict[str, Any]:
    """The contents of run.json of a complete run, with these keys."""
    return {"experiment_id": "x", "status": "complete", "files": {}} | keys


def record_of(**keys: Any) -> RunRecord:
    """The facts of a run as a record."""
    return RunRecord.model_validate(facts_of(**keys))
