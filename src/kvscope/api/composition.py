"""Configuration composed by Hydra: options of a directory, study files and their experiments.

- `composition`: `Composer` of the options of a directory, `groups`, their names by group
- `expand` gives the experiments of a study
- `schema`, for editors of study files, has `write_for_editors` and `MODELINE`
"""

from kvscope.plan import composition, schema
from kvscope.plan.expressions import resolve
from kvscope.plan.grid import expand

__all__ = ["composition", "expand", "resolve", "schema"]
