"""Configuration: options of a directory composed by Hydra, and study files.

- `documents`: `dump` of YAML
- `schema`, for editors of study files: `write_for_editors`, `MODELINE`
"""

from kvscope.plan import documents, schema
from kvscope.plan.composition import Composer
from kvscope.plan.expressions import resolve

__all__ = ["Composer", "documents", "resolve", "schema"]
