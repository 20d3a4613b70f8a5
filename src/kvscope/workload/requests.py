"""The request list of an experiment, identical on every machine."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np

from kvscope.base.errors import BadInput
from kvscope.plan.experiment import Experiment
from kvscope.plan.sources import verify
from kvscope.plan.workload import Lengths, Workload
from kvscope.workload.script import FIRST_PLAIN_ID, Scripted, TokenIds
from kvscope.workload.streams import Purpose, stream

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Request:
    """One request: arrival in seconds, a prompt (int32 token ids), and tokens to generate.

    One that follows others has no arrival: it comes `think_s` seconds after the last of `after`
    (ids of requests) has finished. `output_token_ids` are the tokens that must come out, if the
    workload has them. `conversation` and `turn` name a request of a conversation.

    With `arrival_pass`, it has no arrival either: it comes just before that pass, and with
    `abort_pass` is aborted just before that one. Passes are numbered from 0.
    """

    request_id: str
    arrival_s: float | None
    prompt_token_ids: np.ndarray
    output_tokens: int
    output_token_ids: np.ndarray | None = None
    conversation: str | None = None
    turn: int | None = None
    after: tuple[str, ...] = ()
    think_s: float = 0.0
    arrival_pass: int | None = None
    abort_pass: int | None = None


def build(experiment: Experiment) -> list[Request]:
    """The requests of an experiment, numbered from 0 as they arrive, or in a script's order.

    Token ids are drawn uniformly from the vocabulary without its special ids. Each request has its
    own random stream, so its prompt depends on the seed and its number only. BadInput if a file of
    the workload cannot be used.
    """
    workload, seed = experiment.workload, experiment.seed
    lengths = workload.lengths(seed)
    _refuse_too_long(workload, lengths, experiment.engine.max_model_len)
    arrivals = _arrivals(workload, seed)
    if isinstance(workload, Scripted):
        return list(_scripted(workload, arrivals, seed, experiment.model.vocab_size))
    return [
        Request(str(i), arrivals[i], _token_ids(experiment, i, item.prompt), item.output)
        for i, item in enumerate(lengths)
    ]


def check(experiment: Experiment) -> None:
    """Check, when planning, the lengths that come from files; raises the BadInput of `build`."""
    workload = experiment.workload
    if workload.files or not workload.length_keys:
        verify(workload)
        _check_lengths(workload, experiment.engine.max_model_len)


@lru_cache(maxsize=1024)
def _check_lengths(workload: Workload, max_model_len: int) -> None:
    lengths = workload.lengths(seed=0)  # the seed only changes the order of a file's lengths
    _refuse_too_long(workload, lengths, max_model_len)
    _arrivals(workload, seed=0)


def _scripted(
    workload: Scripted, arrivals: list[float], seed: int, vocab_size: int
) -> Iterator[Request]:
    """The requests of a script; those that follow no other have the arrivals, in their order.

    Those that come before a pass have none.
    """
    script, times = workload.script(seed), iter(arrivals)
    ids = TokenIds(script, seed, vocab_size)
    for number, turn in enumerate(script):
        yield Request(
            str(number),
            None if turn.after or turn.arrival_pass is not None else next(times),
            ids.of(turn.prompt),
            turn.lengths.output,
            ids.of(turn.output) if workload.forces_outputs else None,
            turn.conversation,
            turn.turn,
            tuple(map(str, turn.after)),
            turn.think_s,
            turn.arrival_pass,
            turn.abort_pass,
        )


def sha256_of_tokens(token_ids: "np.ndarray | list[int]") -> str:
    """SHA-256 of token ids as little-endian int32."""
    return sha256(np.asarray(token_ids, dtype="<i4").tobytes()).hexdigest()


def to_frame(requests: list[Request]) -> "pd.DataFrame":
    """The requests as rows of kvscope.tables.WORKLOAD."""
    import pandas as pd  # takes a second to import; planning does not need it

    return pd.DataFrame(
        {
            "request_id": [r.request_id for r in requests],
            "arrival_s": [r.arrival_s for r in requests],
            "prompt_tokens": [len(r.prompt_token_ids) for r in requests],
            "output_tokens": [r.output_tokens for r in requests],
            "prompt_token_ids": [r.prompt_token_ids for r in requests],
            "conversation": [r.conversation for r in requests],
            "turn": pd.array([r.turn for r in requests], "Int32"),
            "after": [list(r.after) or None for r in requests],
            "think_s": [r.think_s if r.after else None for r in requests],
            "output_token_ids": [r.output_token_ids for r in requests],
            "block_ids": None,  # of recordings alone, as the next
            "text_ids": None,
            "arrival_pass": pd.array([r.arrival_pass for r in requests], "Int32"),
            "abort_pass": pd.array([r.abort_pass for r in requests], "Int32"),
        }
    )


def _token_ids(experiment: Experiment, index: int, count: int) -> np.ndarray:
    draw = stream(experiment.seed, Purpose.TOKENS, index)
    return draw.integers(FIRST_PLAIN_ID, experiment.model.vocab_size, size=count, dtype=np.int32)


def _arrivals(workload: Workload, seed: int) -> list[float]:
    """Seconds from a repeat's start to each request that follows no other; the first comes at 0."""
    count = workload.starts(seed)
    if workload.arrival == "poisson" and workload.rate_per_s:
        gaps = stream(seed, Purpose.ARRIVALS).exponential(size=count)
        gaps[0] = 0.0
        return [float(t) for t in np.cumsum(gaps) / workload.rate_per_s]
    return workload.times() if workload.arrival == "trace" else [0.0] * count


def _refuse_too_long(workload: Workload, lengths: list[Lengths], max_model_len: int) -> None:
    if not lengths:
        raise BadInput(f"workload={workload.name} has no requests")
    index, longest = max(enumerate(lengths), key=lambda item: item[1].total)
    if longest.total > max_model_len:
        path = next((getattr(workload, key) for key in workload.files), None)
        place = f" of {path}" if path else ""
        scripted = isinstance(workload, Scripted)
        remedy = "; workload.max_tokens leaves longer requests out" if scripted else ""
        raise BadInput(
            f"request {index}{place} has {longest.prompt} prompt and {longest.output} output "
            f"tokens, but engine.max_model_len is {max_model_len}{remedy}"
        )
