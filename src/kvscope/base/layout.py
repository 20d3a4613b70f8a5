"""The layout of results: the directories below `results/`, and the files of a study.

results/experiments/<id>/    a run: kvscope.tables.runfile has its files
results/tables/<id>/         the tables and metrics computed from it: kvscope.tables.accounts
results/packs/               what was submitted to a cluster: submitit_packs.directory
results/studies/<study>/     a study: its manifest, tables, figures and page
"""

from pathlib import Path

from kvscope.base.files import check_name

RESULTS = Path("results")
EXPERIMENTS, TABLES, STUDIES = "experiments", "tables", "studies"
MANIFEST = "manifest.json"
EXPERIMENT_FILE = "experiment.yaml"
SEGMENTS = "segment-*.jsonl.zst"  # files of a recording
AD_HOC = "adhoc"  # name of a plan made of overrides only, without a study
UNFINISHED = "unfinished"  # subdirectory for the report of an incomplete study
CRATE_FILE = "ro-crate-metadata.json"  # in a study's directory; report.crate


def experiment_directory(results: Path, experiment_id: str) -> Path:
    """The directory of an experiment's run; BadInput if the id is not a valid name."""
    return results / EXPERIMENTS / check_name(experiment_id, "id")


def study_directory(results: Path, study: str) -> Path:
    """The directory of a study's files; BadInput if `study` is not a valid name."""
    return results / STUDIES / check_name(study, "study")


def tables_directory(run: Path) -> Path:
    """The directory of a run's tables.

    results/tables/<id> for a run in results/experiments/<id>, else the run's own directory.
    """
    if run.parent.name != EXPERIMENTS:
        run = run.resolve()  # it may be given as '.', or through a link
    return run.parent.parent / TABLES / run.name if run.parent.name == EXPERIMENTS else run
