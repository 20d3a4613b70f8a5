"""Models by their sizes, and hardware by its data file.

`hardware` has `Hardware`, and `data_file` of a name, which refuses one that has none.
"""

from kvscope.plan.hardware import hardware
from kvscope.plan.models import Model

__all__ = ["Model", "hardware"]
