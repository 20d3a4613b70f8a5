"""Models by their sizes, and the costs of preemption on hardware that has numbers.

- `Model`, and `KvLayers`, those of its layers that keep the same of a token
- `costs`: `CostModel`, which a package registers; `cost_model`, the installed one
- `kv_bytes`: `KvPlan` of a server, with the `HeldBlocks` of requests
- `layers`: `SHIPPED_CONFIG`, the directory with kvscope's own models
"""

from kvscope.plan import costs, layers
from kvscope.plan.models import KvLayers, Model
from kvscope.tables import kv_bytes

__all__ = ["KvLayers", "Model", "costs", "kv_bytes", "layers"]
