"""Models by their sizes, and the costs of preemption on the hardware that has numbers.

- `costs`: `CostModel`, which a package registers; `cost_model`, the installed one
- `layers`: `SHIPPED_CONFIG`, the directory with kvscope's own models
"""

from kvscope.plan import costs, layers
from kvscope.plan.models import Model

__all__ = ["Model", "costs", "layers"]
