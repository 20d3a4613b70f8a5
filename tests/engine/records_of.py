"""What a modeled run records, made in one process without its supervisor: to compare settings."""

import tempfile
from pathlib import Path

from kvscope.engine.marks import Marks
from kvscope.files import sha256_of
from kvscope.layout import EXPERIMENT_FILE
from kvscope.plan.experiment import Experiment, dump
from kvscope.run.locks import SUPERVISOR_LOCK, hold_lock
from kvscope.run.progress import Progress
from kvscope.run.session import Session, measure

Records = dict[str, str]


def records_of(experiments: list[Experiment]) -> list[Records]:
    """Of each experiment the SHA-256 of each file that its run records; a file that lacks is ''.

    Each repeat of a modeled run begins at 0 of the virtual clock, so equal runs have equal bytes.
    """
    return [_records(experiment) for experiment in experiments]


def _records(experiment: Experiment) -> Records:
    with tempfile.TemporaryDirectory(prefix="kvscope-effects-") as name:
        directory = Path(name)
        (directory / EXPERIMENT_FILE).write_text(dump(experiment), encoding="utf-8")
        with hold_lock(directory, SUPERVISOR_LOCK):  # this process is its own supervisor
            measure(Session.begin(directory), Marks(), Progress(directory))
        found = [*directory.glob("*.parquet"), *directory.glob("kernel_events*")]
        return {path.name: sha256_of(path) for path in found}
