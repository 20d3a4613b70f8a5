"""Configuration: options of a directory composed by Hydra, models, hardware, and study files.

- `documents`: `dump` of YAML
- `hardware`: `data_file` of a name, which refuses one that has none
- `schema`, for editors of study files: `write_for_editors`, `MODELINE`
"""

from kvscope.plan import documents, schema
from kvscope.plan.composition import Composer
from kvscope.plan.expressions import resolve
from kvscope.plan.hardware import hardware
from kvscope.plan.models import Model

__all__ = ["Composer", "Model", "documents", "hardware", "resolve", "schema"]
