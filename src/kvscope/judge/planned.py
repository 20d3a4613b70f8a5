"""The planned experiment of a run, from experiment.yaml."""

from kvscope.plan.experiment import Experiment, load, read_settings
from kvscope.tables.run_view import RunView, kept
from kvscope.tables.runfile import EXPERIMENT_FILE, require_unchanged


@kept
def experiment_of(records: RunView) -> Experiment:
    """The experiment of a run; BadInput if its settings are missing or cannot be used here."""
    require_unchanged(records.directory, records.record, EXPERIMENT_FILE)
    return load(records.directory / EXPERIMENT_FILE)


def confirm_settings(records: RunView) -> None:
    """Raise BadInput if the settings have another id than the run."""
    require_unchanged(records.directory, records.record, EXPERIMENT_FILE)
    read_settings(records.directory)
