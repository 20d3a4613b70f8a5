"""`agents`: conversations of coding agents, from traces of kv-cache-tester.

github.com/callanjfox/kv-cache-tester: a JSON object a conversation, here one a line, with
`requests`. A request has `in` and `out` tokens, `think_time` (s), its time `t` (s) since the
conversation's start, and `hash_ids`, one id for each whole block of `block_size` tokens of its
prompt. Ids are local to the conversation unless its `hash_id_scope` is `global`. An entry with type
`subagent` has requests of its own: the sub-agent starts when its parent gets there, and the parent
goes on when all sub-agents that it started have ended, as in that tool's replay.

The tokens of a prompt after its whole blocks, and the generated tokens, are not published. If the
next request begins with all whole blocks of this one, they are the tokens of the next prompt in
the same places.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

from pydantic import Field

from kvscope.base.errors import BadInput
from kvscope.base.reading import short_repr
from kvscope.plan.fields import Label, Pause, Requests, as_written
from kvscope.workload.blocks import BlockTrace, Row, block_ids, seconds, whole_number
from kvscope.workload.script import Text, Texts, Turn, cut, length

LOCAL, GLOBAL, OWN = range(3)
"""The first number of a text's key: a block of a conversation, a shared block, or a single
request's text.
"""
SUBAGENT = "subagent"
DEEPEST = 100  # sub-agents within sub-agents


class Agents(BlockTrace):
    """Agents' conversations whose prompts share blocks as published, in their published order."""

    wanted: ClassVar[str] = (
        "a .jsonl of conversations as those of github.com/callanjfox/kv-cache-tester"
    )

    num_conversations: Annotated[Requests | None, Label("conversations", "{} conversations")] = None
    max_think_s: Annotated[
        Annotated[Pause, Field(ge=0), as_written(minimum=0)] | None,
        Label("longest think time (s)"),
    ] = None

    @property
    def published_block(self) -> int:
        """Tokens of a block in the published traces."""
        return 64

    @property
    def slug(self) -> str:
        """The name with the number of conversations."""
        return f"{self.name}{self.num_conversations or ''}"

    def take(self) -> int | None:
        """The first num_conversations that have a turn of at most max_tokens."""
        return self.num_conversations

    def conversations(self, seed: int) -> Iterator[list[Turn]]:
        """The conversations of the file, each with those of its sub-agents."""
        for number, (place, row) in enumerate(self.rows()):
            if (size := row.get("block_size")) != self.published_block:
                raise BadInput(
                    f"{place}: block_size is {short_repr(size)} but must be {self.published_block}"
                )
            scope = row.get("hash_id_scope", "local")
            if scope not in ("local", "global"):
                raise BadInput(
                    f"{place}: hash_id_scope is {short_repr(scope)} but must be local or global"
                )
            blocks = (GLOBAL,) if scope == "global" else (LOCAL, number)
            name = row.get("id")
            name = name if isinstance(name, str) else str(number)
            yield _Reader(self, number, blocks, place).read(name, row)


@dataclass
class _Reader:
    """Reads one conversation; `blocks` begins the keys of its blocks' texts."""

    workload: Agents
    number: int
    blocks: tuple[int, ...]
    place: str
    turns: list[Turn] = field(default_factory=list)

    def read(self, name: str, row: Row) -> list[Turn]:
        """All turns of the conversation, each with the tail and output that the next one tells."""
        self._add(name, row, after=(), depth=0)
        if not self.turns:
            raise BadInput(f"{self.place}: has no requests")
        return self.turns

    def _add(self, name: str, row: Row, after: tuple[int, ...], depth: int) -> tuple[int, ...]:
        """Add an agent that follows the turns `after`; returns the turns that its parent awaits."""
        requests = row.get("requests")
        if not isinstance(requests, list) or not all(
            isinstance(request, dict) for request in requests
        ):
            raise BadInput(f"{self.place}: requests of {name} must be a list of JSON objects")
        if depth > DEEPEST:
            raise BadInput(f"{self.place}: more than {DEEPEST} sub-agents within one another")
        places: list[int] = []
        awaited: tuple[int, ...] = ()
        before: Row | None = None
        for one in requests:
            last = tuple(places[-1:]) or after
            if one.get("type") == SUBAGENT:
                if not last:
                    raise BadInput(f"{self.place}: begins with a sub-agent, which follows nothing")
                child = f"{name}/{one.get('agent_id', len(self.turns))}"
                awaited += self._add(child, one, last, depth + 1)
                continue
            think_s = self._think_s(one, before) if before else 0.0
            follows = tuple(dict.fromkeys((*last, *awaited)))
            places.append(len(self.turns))
            self.turns.append(self._turn(one, name, len(places) - 1, follows, think_s))
            before, awaited = one, ()
        self._tell_outputs(
            places, [request for request in requests if request.get("type") != SUBAGENT]
        )
        return (*places[-1:], *awaited)

    def _turn(self, row: Row, name: str, turn: int, after: tuple[int, ...], think_s: float) -> Turn:
        """A turn that has only its whole blocks; `_tell_outputs` adds what is behind them."""
        workload = self.workload
        tokens = whole_number(row, "in", self.place)
        ids = block_ids(row, tokens // workload.published_block, "down", self.place)
        prompt = tuple(Text((*self.blocks, i), workload.tokens_of_block) for i in ids)
        return Turn(prompt, (), name, turn, after, think_s)

    def _tell_outputs(self, places: list[int], rows: list[Row]) -> None:
        """Complete an agent's turns, beginning with the last."""
        following: Texts = ()
        for place, row in zip(reversed(places), reversed(rows), strict=True):
            turn = self.turns[place]
            whole = length(turn.prompt)
            prompt = max(1, self.workload.scaled_down(whole_number(row, "in", self.place)))
            output = self.workload.scaled_up(max(1, whole_number(row, "out", self.place, least=0)))
            if not turn.prompt or following[: len(turn.prompt)] != turn.prompt:
                following = ()
            tail = self._tail(following, whole, prompt - whole, (OWN, self.number, place, 0))
            content = turn.prompt + tail
            generated = self._tail(following, prompt, output, (OWN, self.number, place, 1))
            self.turns[place] = replace(turn, prompt=content, output=generated)
            following = content

    @staticmethod
    def _tail(following: Texts, start: int, tokens: int, key: tuple[int, ...]) -> Texts:
        """The tokens from `start` that the next prompt has, and tokens of its own for the rest."""
        shared = cut(following, start, tokens)
        missing = tokens - length(shared)
        return (*shared, Text(key, missing)) if missing else shared

    def _think_s(self, row: Row, before: Row) -> float:
        """Think time; where the trace has none, the time since the request before began."""
        workload = self.workload
        if row.get("think_time") is not None:
            think_s = seconds(row, "think_time", self.place)
        else:
            think_s = seconds(row, "t", self.place) - seconds(before, "t", self.place)
        most = workload.max_think_s
        think_s = max(0.0, think_s if most is None else min(think_s, most))
        return think_s * workload.time_scale
