"""Expected durations of a run's forward passes, to which passes and repeats are compared.

They are estimated over all repeats, so that a repeat that is slow as a whole stands out.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import pandas as pd

from kvscope.tables import due, stalls

__all__ = ["PassDurations", "due"]


@dataclass(frozen=True)
class PassDurations:
    """Expected durations of all passes of a run; every series has the index of `steps`.

    `passes` are its rows of `due.decode_passes`.
    """

    steps: pd.DataFrame
    passes: pd.DataFrame

    @classmethod
    def of(cls, steps: pd.DataFrame, batch: pd.DataFrame) -> Self:
        """Durations of the passes in the tables of a run."""
        return cls(steps, due.decode_passes(steps, batch))

    def retimed(self, steps: pd.DataFrame) -> Self:
        """A copy with other durations of the passes."""
        return replace(self, steps=steps, passes=self.passes.assign(duration_s=steps["duration_s"]))

    @cached_property
    def usual_s(self) -> pd.Series:
        """Usual seconds of each pass: the median of its shape class."""
        return stalls.usual_s(self.steps)

    def due_s(self, passes: pd.Index) -> pd.Series:
        """Seconds expected for the decoding in these passes; NaN without plain decode passes."""
        return due.decode_due_s(self.passes, self.passes.loc[passes])

    @cached_property
    def held_out_due_s(self) -> pd.Series:
        """Expected duration of each plain decode pass, by a fit that leaves it out."""
        return due.held_out_due_s(self.passes)

    @property
    def decode_load(self) -> pd.DataFrame:
        """The decode load of each pass: the columns `due.TERMS`."""
        return self.passes[[*due.TERMS]]
