"""kvscope: how an LLM serving engine uses its KV cache under concurrency.

As a library it reads results: `load` returns a run, `study` a study (docs/LIBRARY.md).
"""

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvscope.tables.results import Run
    from kvscope.tables.study_results import Study

__version__ = "0.2.0"


def load(directory: str | PathLike[str]) -> "Run":
    """Return the run in a directory, such as results/experiments/<id>.

    Its tables are read when they are first used; BadInput is raised then if a file is missing,
    damaged or changed.
    """
    from kvscope.tables.results import Run  # pandas comes with it

    return Run(Path(directory))


def study(name: str, results: str | PathLike[str] = "results") -> "Study":
    """Return a planned study by its name, below a results directory.

    BadInput if `name` is not a valid name of a study.
    """
    from kvscope.tables.study_results import Study  # pandas comes with it

    return Study(name, Path(results))
