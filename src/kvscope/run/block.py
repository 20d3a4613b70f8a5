"""A block of a campaign: engines that are served in the same rounds until their rule ends them."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvscope.base import rounds
from kvscope.base.quantities import plural
from kvscope.plan.repeats import StoppingRule
from kvscope.run.rounds import Group


@dataclass(frozen=True)
class Block:
    """The ids of experiments with one stopping rule, and the comparisons that it is about."""

    ids: tuple[str, ...]
    rule: StoppingRule
    pairs: tuple[tuple[str, str], ...]
    numbers: Sequence[int]  # of its rounds; a reference is in rounds of other blocks, too


@dataclass(frozen=True)
class State:
    """Progress of the rounds of a block.

    Attributes
    ----------
    complete
        rounds that every engine has served
    half_width_share
        of the widest comparison; NaN before there are intervals
    elapsed_s
        seconds of measurement
    """

    rule: StoppingRule
    engines: int
    complete: int
    half_width_share: float
    elapsed_s: float

    @property
    def expected(self) -> int:
        """Expected number of rounds, if the noise stays as it is."""
        rounds_ = self.needed
        if self.rule.budget_s is not None and self.complete:
            affordable = math.ceil(self.rule.budget_s * self.complete / max(self.elapsed_s, 1e-9))
            rounds_ = min(rounds_, affordable)
        return max(self.rule.min, self.complete, rounds_)

    @property
    def needed(self) -> int:
        """Rounds after which the widest comparison would be as narrow as wanted."""
        if self.rule.until is None or not math.isfinite(self.half_width_share):
            return self.rule.min
        return math.ceil(self.complete * (self.half_width_share / self.rule.until) ** 2)

    @property
    def left_s(self) -> float:
        """Seconds until the rounds end; NaN before the end of the first round."""
        if not self.complete:
            return math.nan
        return self.elapsed_s / self.complete * (self.expected - self.complete)

    @property
    def ended(self) -> bool:
        """Whether the rule ends the rounds."""
        return self.rule.ends(self.complete, self.half_width_share, self.elapsed_s)

    def __str__(self) -> str:
        if not self.complete:
            return f"{plural(self.engines, 'engine')} warm, round 1 of {self.expected}"
        width = self.half_width_share
        width_words = f", ± {100 * width:.2g} %" if math.isfinite(width) else ""
        time_words = "" if self.ended else f", {duration(self.left_s)} left"
        return f"round {self.complete} of {self.expected}{width_words}{time_words}"


def duration(seconds: float) -> str:
    """'40 s', '1 min 40 s'."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


Show = Callable[[str], None]
"""Shows one line on the terminal, in place of the one before."""


@dataclass
class Told:
    """Shows the progress of a campaign: its stage, and the phase of the engine that is waited
    for."""

    show: Show
    words: str = ""

    def stage(self, words: str) -> None:
        """Show the stage that begins, such as the round of a block."""
        self.words = words
        self.show(words)

    def __call__(self, phase: str, share: float) -> None:
        """Show the share of a phase that is done, with the stage that it is in."""
        self.show(f"{self.words or phase}{f': {100 * share:.0f} %' if share else ''}")


def serve_rounds(group: Group, block: Block, show: Show) -> None:
    """Serve complete rounds until the block's rule ends them; those served before count."""
    before_s, began_s = sum(group.measured(block.numbers).time), time.monotonic()
    while group.active:
        served = [group.rounds_of(name, block.numbers) for name in group.active]
        whole, last = set.intersection(*served), max(set.union(*served), default=-1)
        width = widest(group.measured(block.numbers), block.pairs)
        elapsed_s = before_s + time.monotonic() - began_s
        state = State(block.rule, len(group.active), len(whole), width, elapsed_s)
        show(str(state))
        if state.ended:
            return
        # If the last round is not whole it is completed first; earlier ones are too old for that.
        group.serve_round(next(n for n in block.numbers if n >= last and n not in whole))


def widest(measured: rounds.Rounds, pairs: Sequence[tuple[str, str]]) -> float:
    """Half the width of the widest comparison, else value, as a share; NaN if unknown."""
    names = set(measured.experiment)
    measured_pairs = [pair for pair in pairs if names.issuperset(pair)]
    if measured_pairs:
        widths = [measured.ratio(other, base).half_width_share for base, other in measured_pairs]
    else:
        widths = [measured.value(name).half_width_share for name in names]
    return math.nan if not widths or any(map(math.isnan, widths)) else max(widths)
