"""Progress of an experiment, by the files that its stages have left."""

from pathlib import Path

from kvscope.base.layout import experiment_directory, tables_directory
from kvscope.tables import accounts, attempts, runfile


def is_finished(experiment_id: str, results: Path) -> bool:
    """Whether an experiment is measured and analysed, and no new measurement is requested."""
    run = experiment_directory(results, experiment_id)
    measured = (run / runfile.RUN_DONE).exists() and not attempts.is_requested(run)
    return measured and accounts.is_current(tables_directory(run), accounts.ANALYSED, run)
