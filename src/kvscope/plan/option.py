"""Options that are classes: devices, workloads and policies.

The fields of such a class are the keys of its configuration. `registry` finds it by name; its
module must not import torch or vllm, because planning imports it.
"""

from typing import Annotated

from pydantic import Field

from kvscope.plan.fields import Part
from kvscope.plan.parts import Conditions


class Option(Part):
    """Base class of options: one option of a group of the configuration."""

    name: Annotated[str, Field(max_length=60)]

    def __hash__(self) -> int:
        return hash(self.model_dump_json())  # a field may be a list

    @property
    def slug(self) -> str:
        """Its part of an experiment's slug."""
        return self.name

    def check(self, experiment: Conditions) -> None:
        """Raise `impossible` if the option cannot work in this experiment."""
