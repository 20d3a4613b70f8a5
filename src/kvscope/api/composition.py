"""Configuration composed by Hydra: options of a directory, study files and their experiments.

`expand` gives the experiments of a study. `schema`, for editors of study files, has
`write_for_editors` and `MODELINE`.
"""

from kvscope.plan import schema
from kvscope.plan.composition import Composer
from kvscope.plan.expressions import resolve
from kvscope.plan.grid import expand

__all__ = ["Composer", "expand", "resolve", "schema"]
