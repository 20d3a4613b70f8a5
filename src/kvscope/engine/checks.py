"""Results of an engine that are held against a plain recomputation while it warms up."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Comparisons:
    """How many results were compared, how many differ, and the first of those in words."""

    compared: int = 0
    differing: int = 0
    first: str = ""

    def add(self, same: bool, words: str) -> None:
        """Count a result in; the words say which one it is, and in what it differs."""
        self.compared += 1
        if not same:
            self.differing += 1
            self.first = self.first or words

    @property
    def facts(self) -> dict[str, Any]:
        """As run.json has it."""
        return {"compared": self.compared, "differing": self.differing, "first": self.first}


@dataclass
class PassSelection:
    """Which forward passes are looked at: the first, and each that is twice the last one's number.

    A pass begins with its first layer. `count` counts the passes, this one included.
    """

    first_layer: int | None = None
    number: int = field(default=0, init=False)
    count: int = field(default=0, init=False)
    selected: bool = field(default=False, init=False)

    def reach(self, layer: int) -> bool:
        """A layer's turn has come; whether its pass is one to look at."""
        if self.first_layer is None:
            self.first_layer = layer
        if layer == self.first_layer:
            self.number += 1
            self.selected = self.number & (self.number - 1) == 0
            self.count += self.selected
        return self.selected
