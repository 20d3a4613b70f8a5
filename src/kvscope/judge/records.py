"""The records of a run that are read from its directory."""

from functools import cached_property
from pathlib import Path
from typing import Any

from kvscope.base.errors import BadInput
from kvscope.plan.documents import load_mapping
from kvscope.tables import HOST_TABLES, OF_SOME_RUNS, TRANSFERS
from kvscope.tables.results import Run
from kvscope.tables.run_view import RunView
from kvscope.tables.runfile import EXPERIMENT_FILE, require_unchanged
from kvscope.tables.runschema import TRANSFERS as TRANSFERS_SINCE


class Records(RunView, Run):
    """The records of a run's directory, or of a single repeat."""

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings in experiment.yaml; BadInput if the file was changed."""
        require_unchanged(self.directory, self.record, EXPERIMENT_FILE)
        path = self.directory / EXPERIMENT_FILE
        return load_mapping(path) if path.exists() else {}


def read_records(directory: Path, **known: Any) -> Records:
    """Read the records of a run's directory; `known` as for `Run`.

    Raises BadInput if a table is missing, damaged or changed, or if the run failed without tables.
    """
    records = Records(directory, **known)
    required = [table for table in HOST_TABLES if table not in OF_SOME_RUNS]
    record = records.record
    if record.schema_version < TRANSFERS_SINCE:
        required.remove(TRANSFERS)
    missing = [path for path in map(records.path, required) if not path.exists()]
    if not record.complete and (missing or records.steps.empty):
        why = record.why_failed
        raise BadInput(f"{directory}: the run failed and left nothing to analyse ({why})")
    for table in required:
        getattr(records, table.name)
    if missing:
        raise BadInput(f"{missing[0]}: no such file")
    return records
