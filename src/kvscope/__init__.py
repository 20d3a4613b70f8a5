"""kvscope: how an LLM serving engine uses its KV cache under concurrency.

As a library it reads results: `load` a run, or a `study`. docs/LIBRARY.md shows both.
"""

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvscope.results import Run, Study

__version__ = "0.1.0"


def load(directory: str | PathLike[str]) -> "Run":
    """The run in a directory, such as results/experiments/<id>; its tables are read when used."""
    from kvscope.results import Run  # pandas comes with it

    return Run(Path(directory))


def study(name: str, results: str | PathLike[str] = "results") -> "Study":
    """A planned study by its name, below a results directory; BadInput if it is no name."""
    from kvscope.results import Study  # pandas comes with it

    return Study(name, Path(results))
