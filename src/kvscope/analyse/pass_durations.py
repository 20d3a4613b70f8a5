"""What the forward passes of a run take as a rule: what single passes and repeats are held against.

It is judged over all repeats together: a repeat that is slow as a whole must not look as usual.
"""

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from kvscope import due, stalls


@dataclass(frozen=True)
class PassDurations:
    """The passes of a whole run; every series has the index of `steps`."""

    steps: pd.DataFrame
    batch: pd.DataFrame

    @cached_property
    def usual_s(self) -> pd.Series:
        """What each pass usually takes: the median of its kind, in seconds."""
        return stalls.usual_s(self.steps)

    @cached_property
    def due_s(self) -> pd.Series:
        """Seconds that decoding was due to take in each pass; NaN without plain decode passes."""
        return due.decode_due_s(self.steps, self.batch)

    @cached_property
    def held_out_due_s(self) -> pd.Series:
        """The same of plain decode passes only, by a fit to others."""
        return due.held_out_due_s(self.steps, self.batch)

    @cached_property
    def decode_load(self) -> pd.DataFrame:
        """What each pass decodes: requests, and their context."""
        return due.decode_passes(self.steps, self.batch)[[*due.TERMS]]
