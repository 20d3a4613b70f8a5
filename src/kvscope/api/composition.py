"""Configuration: options of a directory composed by Hydra, models, hardware, and study files."""

from kvscope.plan import documents, schema
from kvscope.plan.composition import Composer
from kvscope.plan.expressions import resolve
from kvscope.plan.hardware import hardware
from kvscope.plan.models import Model

__all__ = ["Composer", "Model", "documents", "hardware", "resolve", "schema"]
