"""How far an experiment has come, by what its stages have left."""

from pathlib import Path

from kvscope import accounts, attempts, runfile
from kvscope.layout import experiment_directory, tables_directory


def is_finished(experiment_id: str, results: Path) -> bool:
    """Whether an experiment is measured and analysed, and no new measurement is requested."""
    run = experiment_directory(results, experiment_id)
    measured = (run / runfile.RUN_DONE).exists() and not attempts.is_requested(run)
    return measured and accounts.is_current(tables_directory(run), accounts.ANALYSED, run)
