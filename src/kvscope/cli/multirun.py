"""Experiments as a sweep of Hydra's: each is a job of the launcher that `hydra/launcher` names.

kvscope expands the grid, as everywhere; Hydra's sweeper is given the ids, and the launcher starts
`measure` for each, in this process, on this machine, or on a node of a cluster.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException

from kvscope.base.errors import BadInput, KvscopeError
from kvscope.base.files import make_directory, write_text
from kvscope.base.layout import RESULTS, experiment_directory
from kvscope.cli import batch
from kvscope.plan.experiment import Experiment, dump, load
from kvscope.run.display import Line

MULTIRUN = "multirun"  # below results/: what each sweep was given, and its logs


def launch(experiments: Sequence[Experiment], words: Sequence[str], force: bool) -> dict[str, str]:
    """Run experiments with Hydra's launcher and wait for all; by id why some have no result.

    `words` are overrides of Hydra's own configuration, such as `hydra/launcher=submitit_slurm`.
    BadInput if Hydra cannot use them; KvscopeError if the launcher fails as a whole.
    """
    place = RESULTS / MULTIRUN / time.strftime("%Y-%m-%d_%H-%M-%S")
    make_directory(place)
    for experiment in experiments:
        write_text(_file(place, experiment.id), dump(experiment))
    overrides = [
        "hydra.job.name=kvscope",
        f"hydra.sweep.dir={place}",
        "hydra.sweep.subdir=${experiment}",
        *words,
        f"+force={force}",
        f"+experiment={','.join(e.id for e in experiments)}",
    ]
    GlobalHydra.instance().clear()
    try:
        hydra = Hydra.create_main_hydra2("kvscope", create_config_search_path(None))
        batches = hydra.multirun(config_name=None, task_function=measure, overrides=overrides)
    except HydraException as error:
        raise BadInput(f"Hydra cannot use {' '.join(words)}: {_sentence(error)}") from None
    except Exception as error:  # launchers raise what they like
        raise KvscopeError(f"{' '.join(words)} failed: {_sentence(error)}") from None
    reasons = [job.return_value for batch in batches for job in batch]
    return {e.id: reason for e, reason in zip(experiments, reasons, strict=True) if reason}


def measure(config: Any) -> str:
    """Run an experiment in a job of the launcher; returns why it has no result, or ''."""
    experiment = load(_file(Path(HydraConfig.get().sweep.dir), config.experiment))
    directory = experiment_directory(RESULTS, experiment.id)
    job = batch.Job(experiment, directory, config.force)
    try:
        with Line(sys.stderr) as line:
            (error,) = batch.run([job], line).values()
    except KvscopeError as failure:
        error = failure
    return "" if error is None else str(error)


def _file(place: Path, experiment_id: str) -> Path:
    return place / f"{experiment_id}.yaml"


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split())
