"""Expected durations of a run's forward passes, to which passes and repeats are compared.

They are estimated over all repeats, so that a repeat that is slow as a whole stands out.
"""

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from kvscope import due, stalls


@dataclass(frozen=True)
class PassDurations:
    """Expected durations of all passes of a run; every series has the index of `steps`."""

    steps: pd.DataFrame
    batch: pd.DataFrame

    @cached_property
    def usual_s(self) -> pd.Series:
        """Usual seconds of each pass: the median of its shape class."""
        return stalls.usual_s(self.steps)

    @cached_property
    def due_s(self) -> pd.Series:
        """Seconds expected for the decoding in each pass; NaN without plain decode passes."""
        return due.decode_due_s(self.steps, self.batch)

    @cached_property
    def held_out_due_s(self) -> pd.Series:
        """The same for each plain decode pass, by a fit that leaves it out."""
        return due.held_out_due_s(self.steps, self.batch)

    @cached_property
    def decode_load(self) -> pd.DataFrame:
        """The decode load of each pass: the columns `due.TERMS`."""
        return due.decode_passes(self.steps, self.batch)[[*due.TERMS]]
