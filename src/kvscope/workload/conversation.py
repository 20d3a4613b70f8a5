"""`conversation`: synthetic conversations of several turns over a shared system prompt."""

from collections.abc import Iterator
from enum import IntEnum
from math import log
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from kvscope.plan.fields import (
    MAX_LENGTH,
    Count,
    Label,
    Pause,
    Real,
    Requests,
    Tokens,
    Whole,
    as_written,
)
from kvscope.workload.script import Scripted, Text, Texts, Turn, length
from kvscope.workload.streams import Purpose, stream

Sigma = Annotated[Real, Field(ge=0, le=5)]
MOST_TURNS = 1000
LONGEST_PAUSE_S = 1e6


class Part(IntEnum):
    """The parts of a conversation, each with its random stream; the numbers must not change."""

    TURNS = 0
    SYSTEM = 1
    FIRST = 2
    GROWTH = 3
    OUTPUT = 4
    THINK = 5


class Conversation(Scripted):
    """Turns whose prompts begin with all earlier turns of the conversation.

    A prompt is the system prompt, all turns before with what was generated, and what is new. Each
    quantity has a log-normal distribution: the key is its median, `…_sigma` the standard deviation
    of its logarithm (0: always the median). `system_prompts` of `system_tokens` tokens each are
    given to the conversations in turn.
    """

    num_conversations: Annotated[Requests, Label("conversations", "{} conversations")]
    system_prompts: Annotated[Count, Label("system prompts")] = 1
    system_tokens: Annotated[Tokens, Label("system prompt (tokens)")]
    turns: Annotated[
        Whole, Field(ge=1, le=MOST_TURNS), Label("turns of a conversation", "{} turns")
    ]
    turns_sigma: Sigma = 0.0
    first_tokens: Annotated[Tokens, Label("first message (tokens)")]
    first_tokens_sigma: Sigma = 0.0
    growth_tokens: Annotated[Tokens, Label("each later message (tokens)")]
    growth_tokens_sigma: Sigma = 0.0
    output_tokens: Annotated[Tokens, Label("output tokens", "{} output tokens")]
    output_tokens_sigma: Sigma = 0.0
    think_s: Annotated[
        Pause,
        Field(ge=0, le=LONGEST_PAUSE_S),
        as_written(minimum=0, maximum=LONGEST_PAUSE_S),
        Label("think time (s)"),
    ]
    think_sigma: Sigma = 0.0

    length_keys: ClassVar[tuple[str, ...]] = ()

    @property
    def slug(self) -> str:
        """The name with the number of conversations."""
        return f"{self.name}{self.num_conversations}"

    def take(self) -> int | None:
        """All that are made."""
        return None

    def conversations(self, seed: int) -> Iterator[list[Turn]]:
        """The conversations, each from random streams of its own."""
        for number in range(self.num_conversations):
            yield self._conversation(number, seed)

    def _conversation(self, number: int, seed: int) -> list[Turn]:
        def draw(part: Part, median: float, sigma: float, count: int = 1) -> np.ndarray:
            normal = stream(seed, Purpose.CONVERSATIONS, number, part).standard_normal(count)
            return np.exp(log(median) + sigma * normal)

        def whole(part: Part, median: int, sigma: float, count: int = 1) -> list[int]:
            drawn = np.rint(draw(part, median, sigma, count))
            return [int(value) for value in drawn.clip(1, MAX_LENGTH)]

        turns = min(*whole(Part.TURNS, self.turns, self.turns_sigma), MOST_TURNS)
        (first,) = whole(Part.FIRST, self.first_tokens, self.first_tokens_sigma)
        later = whole(Part.GROWTH, self.growth_tokens, self.growth_tokens_sigma, turns)
        outputs = whole(Part.OUTPUT, self.output_tokens, self.output_tokens_sigma, turns)
        paused = draw(Part.THINK, self.think_s or 1.0, self.think_sigma, turns)
        pauses_s = paused.clip(0, LONGEST_PAUSE_S) * bool(self.think_s)
        context: Texts = (Text((Part.SYSTEM, number % self.system_prompts), self.system_tokens),)
        script: list[Turn] = []
        for turn in range(turns):
            part, tokens = (Part.GROWTH, later[turn]) if turn else (Part.FIRST, first)
            context += (Text((part, number, turn), tokens),)
            output = (Text((Part.OUTPUT, number, turn), outputs[turn]),)
            after, think_s = ((turn - 1,), float(pauses_s[turn])) if turn else ((), 0.0)
            script.append(Turn(context, output, str(number), turn, after, think_s))
            if length(context) + outputs[turn] > (self.max_tokens or MAX_LENGTH):
                break
            context += output
        return script
