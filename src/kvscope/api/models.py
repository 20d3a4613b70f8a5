"""Models by their sizes, hardware by its data file, and what passes of one cost on the other.

- `hardware`: `Hardware`; `data_file` of a name, which refuses one that has none; `read` of a file
- `costs`: `PassCost`, whose `pass_s` are seconds of a pass; `copy_s`, those of copies
- `layers`: `SHIPPED_CONFIG`, the directory with kvscope's own models
"""

from kvscope.plan import layers
from kvscope.plan.hardware import cost as costs
from kvscope.plan.hardware import hardware
from kvscope.plan.models import Model

__all__ = ["Model", "costs", "hardware", "layers"]
