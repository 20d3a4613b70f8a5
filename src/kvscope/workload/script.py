"""Scripts: requests that share texts, follow one another, and generate tokens known before.

A `Text` is a run of token ids with a key. Equal keys are equal tokens, so that prompts share what a
trace or a conversation shares: a system prompt, the turns before.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Annotated, ClassVar

import numpy as np

from kvscope.base.errors import BadInput
from kvscope.plan import fields, sources
from kvscope.plan.fields import MAX_REQUESTS, MAX_TOKENS, Label, impossible
from kvscope.plan.parts import Conditions
from kvscope.plan.workload import Lengths, Workload
from kvscope.workload.streams import Purpose, stream

# Ids 0, 1 and 2 pad, begin and end a text in Llama's and OPT's vocabularies; a prompt that held
# them would not be plain text (OPT's embedding of its padding id is zero).
FIRST_PLAIN_ID = 3


@dataclass(frozen=True, slots=True)
class Text:
    """A run of `tokens` token ids, from token `start` of the text with this key (of numbers)."""

    key: tuple[int, ...]
    tokens: int
    start: int = 0

    @property
    def end(self) -> int:
        """The place after the last token, in the whole text."""
        return self.start + self.tokens


Texts = tuple[Text, ...]


def length(texts: Iterable[Text]) -> int:
    """Tokens of texts one after another."""
    return sum(text.tokens for text in texts)


def cut(texts: Sequence[Text], start: int, tokens: int) -> Texts:
    """Up to `tokens` tokens from `start` of texts one after another."""
    parts = []
    begins = accumulate((text.tokens for text in texts), initial=0)
    for text, begin in zip(texts, begins, strict=False):
        first, last = max(start - begin, 0), min(start + tokens - begin, text.tokens)
        if first < last:
            parts.append(Text(text.key, last - first, text.start + first))
    return tuple(parts)


@dataclass(frozen=True, slots=True)
class Turn:
    """A request of a script: its prompt, its output, and the requests that it follows.

    It comes `think_s` seconds after the last of the turns `after` (their places in the script) has
    finished; without any, when the workload's arrivals have it come: `start_s` is its time in a
    trace, `arrival_pass` the pass before which it comes, `abort_pass` the one before which it is
    aborted. `conversation` and `turn` (from 0) name it; None where a trace does not say what
    belongs together.
    """

    prompt: Texts
    output: Texts
    conversation: str | None = None
    turn: int | None = None
    after: tuple[int, ...] = ()
    think_s: float = 0.0
    start_s: float = 0.0
    arrival_pass: int | None = None
    abort_pass: int | None = None

    @property
    def lengths(self) -> Lengths:
        """Its tokens."""
        return Lengths(length(self.prompt), length(self.output))


class Scripted(Workload):
    """Base class of workloads whose prompts share texts.

    With `forces_outputs` the tokens that come out are the script's: the prompts of later turns have
    them.
    """

    forces_outputs: ClassVar[bool] = True

    max_tokens: Annotated[fields.Tokens | None, Label("longest request (tokens)")] = None

    @abstractmethod
    def conversations(self, seed: int) -> Iterator[list[Turn]]:
        """The turns of each conversation, the places of `after` counted from its first turn."""

    @abstractmethod
    def take(self) -> int | None:
        """The number of conversations to take; None for all."""

    def script(self, seed: int) -> tuple[Turn, ...]:
        """All turns; BadInput if a file cannot be used, or has too few conversations.

        A turn of more than `max_tokens` is left out, and so are the turns that follow it.
        """
        sources.verify(self)
        return _script(self, seed)

    def lengths(self, seed: int) -> list[Lengths]:
        """The lengths of each turn."""
        return [turn.lengths for turn in self.script(seed)]

    def starts(self, seed: int) -> int:
        """The number of turns that follow no other."""
        return sum(not turn.after for turn in self.script(seed))

    def longest_at_once(self, seed: int) -> list[Lengths]:
        """The longest turn of each conversation; a turn without a conversation counts by itself."""
        longest: dict[str | int, Lengths] = {}
        for place, turn in enumerate(self.script(seed)):
            name, lengths = turn.conversation or place, turn.lengths
            longest[name] = max(lengths, longest.get(name, lengths), key=lambda one: one.total)
        return list(longest.values())

    def pauses_s(self) -> float:
        """Seconds of think time of the longest chain of turns."""
        waited: list[float] = []
        for turn in self.script(seed=0):
            before = max((waited[place] for place in turn.after), default=0.0)
            waited.append(before + turn.think_s)
        return max(waited)

    def check(self, experiment: Conditions) -> None:
        """Refuse, too, a timeout: a turn would follow an aborted turn."""
        super().check(experiment)
        if self.forces_outputs and not experiment.device.forces_outputs:
            raise impossible(
                f"workload={self.name} needs a device that can give the tokens of a script, which "
                f"device={experiment.device.name} cannot",
                "workload",
                "device",
            )
        if self.forces_outputs and self.timeout_s is not None:
            raise impossible(
                f"workload.timeout_s ({self.timeout_s}) must be null with workload={self.name}: a "
                "turn follows the one before, which has to finish",
                "workload.timeout_s",
            )


@lru_cache(maxsize=8)
def _script(workload: Scripted, seed: int) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    count, taken, tokens = workload.take(), 0, 0
    for conversation in workload.conversations(seed):
        if taken == count:
            break
        fitting = _fitting(conversation, workload.max_tokens)
        taken += bool(fitting)
        tokens += sum(turn.lengths.total for turn in fitting)
        if len(turns) + len(fitting) > MAX_REQUESTS or tokens > MAX_TOKENS:
            raise BadInput(
                f"workload={workload.name} has more than {MAX_REQUESTS:,} requests or "
                f"{MAX_TOKENS:,} tokens; take fewer conversations, or leave long turns out with "
                "workload.max_tokens"
            )
        places = range(len(turns), len(turns) + len(fitting))
        turns += (replace(t, after=tuple(places[i] for i in t.after)) for t in fitting)
    if count is not None and taken < count:
        raise BadInput(
            f"workload={workload.name} is to have {count} conversations, but there are {taken}"
            + (
                f" with a turn of at most {workload.max_tokens} tokens"
                if workload.max_tokens
                else ""
            )
        )
    return tuple(turns)


def _fitting(turns: list[Turn], most: int | None) -> list[Turn]:
    """The turns of at most so many tokens that follow no longer turn, with their new places."""
    if most is None:
        return turns
    kept: list[Turn] = []
    places: dict[int, int] = {}
    for place, turn in enumerate(turns):
        if turn.lengths.total <= most and places.keys() >= set(turn.after):
            places[place] = len(kept)
            kept.append(replace(turn, after=tuple(places[i] for i in turn.after)))
    return kept


class TokenIds:
    """The token ids of texts: each drawn once, uniformly from the vocabulary's plain ids."""

    def __init__(self, script: Sequence[Turn], seed: int, vocab_size: int) -> None:
        self._seed, self._vocab_size = seed, vocab_size
        self._ends: dict[tuple[int, ...], int] = {}
        self._drawn: dict[tuple[int, ...], np.ndarray] = {}
        for turn in script:
            for text in (*turn.prompt, *turn.output):
                self._ends[text.key] = max(self._ends.get(text.key, 0), text.end)

    def of(self, texts: Texts) -> np.ndarray:
        """The ids (int32) of texts one after another."""
        return np.concatenate([self._whole(text.key)[text.start : text.end] for text in texts])

    def _whole(self, key: tuple[int, ...]) -> np.ndarray:
        if key not in self._drawn:
            draw = stream(self._seed, Purpose.TEXTS, *key)
            size = self._ends[key]
            self._drawn[key] = draw.integers(FIRST_PLAIN_ID, self._vocab_size, size, np.int32)
        return self._drawn[key]
