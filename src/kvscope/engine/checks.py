"""Comparisons of an engine's results with a reference, made during the warm-up."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Comparisons:
    """The number of compared results, the number that differ, and a description of the first."""

    compared: int = 0
    differing: int = 0
    first: str = ""

    def add(self, same: bool, words: str) -> None:
        """Count a result; `words` describes it and how it differs."""
        self.compared += 1
        if not same:
            self.differing += 1
            self.first = self.first or words

    @property
    def facts(self) -> dict[str, Any]:
        """The entry of run.json."""
        return {"compared": self.compared, "differing": self.differing, "first": self.first}


@dataclass
class PassSelection:
    """Selects the forward passes 1, 2, 4, 8, …

    A pass begins with its first layer. `count` counts the passes, this one included.
    """

    first_layer: int | None = None
    number: int = field(default=0, init=False)
    count: int = field(default=0, init=False)
    selected: bool = field(default=False, init=False)

    def reach(self, layer: int) -> bool:
        """Note that a layer runs; returns whether its pass is selected."""
        if self.first_layer is None:
            self.first_layer = layer
        if layer == self.first_layer:
            self.number += 1
            self.selected = self.number & (self.number - 1) == 0
            self.count += self.selected
        return self.selected
