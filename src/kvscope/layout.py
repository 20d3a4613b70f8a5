"""Where results lie: the directories below `results/`, and the files of a study.

results/experiments/<id>/    a run: kvscope.runfile has its files
results/tables/<id>/         what was collected and analysed of it: kvscope.accounts
results/studies/<study>/     a study: its manifest, tables, figures and page
"""

from pathlib import Path

from kvscope.files import check_name

RESULTS = Path("results")
EXPERIMENTS, TABLES, STUDIES = "experiments", "tables", "studies"
MANIFEST = "manifest.json"
AD_HOC = "adhoc"  # the study of the command line alone
UNFINISHED = "unfinished"  # where the report of a study goes that is not complete


def experiment_directory(results: Path, experiment_id: str) -> Path:
    """Where an experiment is measured; BadInput if its id is no name."""
    return results / EXPERIMENTS / check_name(experiment_id, "id")


def study_directory(results: Path, study: str) -> Path:
    """Where a study's products lie; BadInput if it is no name."""
    return results / STUDIES / check_name(study, "study")


def tables_directory(run: Path) -> Path:
    """Where a run's tables go: results/tables/<id> of results/experiments/<id>, or in the run."""
    if run.parent.name != EXPERIMENTS:
        run = run.resolve()  # it may be given as '.', or through a link
    return run.parent.parent / TABLES / run.name if run.parent.name == EXPERIMENTS else run
