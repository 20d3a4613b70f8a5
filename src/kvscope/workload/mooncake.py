"""`mooncake`: requests of Mooncake's traces, with the prefixes that they share.

github.com/kvcache-ai/Mooncake, FAST'25: a line a request with `timestamp` (ms), `input_length`,
`output_length` and `hash_ids`, one id for each block of 512 tokens, the last of which may be
partial. The trace does not say which request continues which, nor which tokens were generated.
Traces of this format with blocks of another size have it in `trace_block_tokens`, those with times
in seconds in `time_unit` (`kvscope.workload.time_unit` refuses what may be either). Those that
`kvscope replay` writes also have `arrival_pass`, the pass before which a request came, and
`abort_pass`, the one before which it was aborted, if it was.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar

from kvscope.base.errors import BadInput
from kvscope.plan.fields import Label, Requests, Tokens, impossible
from kvscope.plan.parts import Conditions
from kvscope.workload.blocks import BlockTrace, Row, block_ids, seconds, whole_number
from kvscope.workload.script import Text, Turn
from kvscope.workload.time_unit import TimeUnit, per_second, refuse_ambiguous, unless_effective

BLOCKS, OUTPUTS = range(2)
"""The first number of a text's key: a block, or the output of a request."""


class Mooncake(BlockTrace):
    """Prompts whose blocks are shared as published, and their times with arrival=trace.

    With arrival=passes they come, and are aborted, before the passes that the file names.
    """

    wanted: ClassVar[str] = (
        "a trace as those of github.com/kvcache-ai/Mooncake, a .jsonl with hash_ids"
    )
    has_times: ClassVar[bool] = True
    has_passes: ClassVar[bool] = True
    forces_outputs: ClassVar[bool] = False

    num_requests: Annotated[Requests | None, Label("requests", "{} requests")] = None
    trace_block_tokens: Annotated[Tokens, Label("tokens of a block in the file")] = 512
    time_unit: TimeUnit = None

    @property
    def published_block(self) -> int:
        """Tokens of a block in the trace's file."""
        return self.trace_block_tokens

    def take(self) -> int | None:
        """The first num_requests requests of at most max_tokens."""
        return self.num_requests

    def conversations(self, seed: int) -> Iterator[list[Turn]]:
        """Each request by itself."""
        if self.arrival == "trace" and self.time_unit is None:
            refuse_ambiguous(self.rows(), self.num_requests)
        before_s = 0.0
        for number, (place, row) in enumerate(self.rows()):
            turn = self._turn(number, row, place)
            if turn.start_s < before_s:
                raise BadInput(f"{place}: arrives before the request above it")
            before_s = turn.start_s
            yield [turn]

    def check(self, experiment: Conditions) -> None:
        """Refuse, too, settings of times where no times are read."""
        super().check(experiment)
        unless_effective(self.time_unit, self.arrival)
        if self.arrival != "trace" and self.time_scale != 1:
            raise impossible(
                f"workload.time_scale ({self.time_scale}) has no meaning with workload.arrival="
                f"{self.arrival}, only with trace",
                *("workload.time_scale", "workload.arrival"),
            )

    def _turn(self, number: int, row: Row, place: str) -> Turn:
        tokens = whole_number(row, "input_length", place)
        ids = block_ids(row, -(-tokens // self.published_block), "up", place)
        size, prompt = self.tokens_of_block, self.scaled_up(tokens)
        sizes = (min(size, prompt - size * i) for i in range(len(ids)))
        output = whole_number(row, "output_length", place)
        came, aborted = self._passes(row, place)
        if aborted is not None:
            output += (
                2  # it does not end before, not even by a token of the pass that it is aborted in
            )
        return Turn(
            tuple(Text((BLOCKS, i), n) for i, n in zip(ids, sizes, strict=True)),
            (Text((OUTPUTS, number), self.scaled_up(output)),),
            start_s=seconds(row, "timestamp", place, per_second(self.time_unit)) * self.time_scale,
            arrival_pass=came,
            abort_pass=aborted,
        )

    def _passes(self, row: Row, place: str) -> tuple[int | None, int | None]:
        """The passes before which a request comes and is aborted; None for what is not by pass."""
        if not self.comes_by_pass:
            return None, None
        came = whole_number(row, "arrival_pass", place, 0)
        if row.get("abort_pass") is None:
            return came, None
        return came, whole_number(row, "abort_pass", place, came)

    def times(self) -> list[float]:
        """Seconds from the first request to each."""
        starts_s = [turn.start_s for turn in self.script(seed=0)]
        return [start_s - starts_s[0] for start_s in starts_s]
