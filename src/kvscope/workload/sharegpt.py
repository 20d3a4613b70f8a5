"""`sharegpt`: the lengths of real conversations.

They come from the user's copy of ShareGPT_V3_unfiltered_cleaned_split.json. The first two turns of
each conversation are a prompt and its output. Conversations are shuffled by the seed, and those of
at most `max_tokens` are kept. Only the lengths are used, never the text.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from math import ceil
from pathlib import Path
from typing import Annotated, Any, ClassVar

import orjson
from pydantic import Field

from kvscope.base import limits
from kvscope.base.errors import BadInput
from kvscope.base.reading import one_line, read_bytes, refusing
from kvscope.plan import sources
from kvscope.plan.fields import Label, Requests, Sha256, Tokens, impossible
from kvscope.plan.parts import Conditions
from kvscope.plan.workload import Lengths, Workload

MIN_PROMPT_TOKENS = 4
# A rule of thumb for English text; used where no tokenizer is given.
CHARACTERS_PER_TOKEN = 4
# Tokens of a conversation's prompt and output, in the mean, as vLLM's benchmark of ShareGPT counts
# them.
CONVERSATION = (215, 198)

Counter = Callable[[str], int]
Conversation = tuple[str, str]


class ShareGPT(Workload):
    """The lengths of conversations of at most `max_tokens`, in shuffled order.

    The planner fills in the SHA-256 of the files' content (plan.sources).
    """

    files: ClassVar[dict[str, str]] = {"path": "sha256", "tokenizer": "tokenizer_sha256"}
    wanted: ClassVar[str] = (
        "your copy of ShareGPT_V3_unfiltered_cleaned_split.json, a file of the Hugging Face "
        "dataset anon8231489123/ShareGPT_Vicuna_unfiltered"
    )
    length_keys: ClassVar[tuple[str, ...]] = ("max_tokens",)

    num_requests: Annotated[Requests, Label("requests", "{} requests")]
    path: str
    sha256: Sha256
    tokenizer: str | None = None
    tokenizer_sha256: Sha256 | None = None
    max_tokens: Annotated[Tokens, Field(ge=5), Label("longest request (tokens)")]

    def lengths(self, seed: int) -> list[Lengths]:
        """The lengths; BadInput if a file changed since planning, is malformed, or too short."""
        sources.verify(self)
        return list(_select(self, seed))

    def expected(self) -> tuple[float, float, float]:
        """The means of CONVERSATION, reduced for the limit `max_tokens`; the file is not read."""
        prompt, output = CONVERSATION
        shorter = min(1.0, self.max_tokens / 2 / (prompt + output))
        return prompt * shorter, output * shorter, self.max_tokens / 2

    def facts(self) -> dict[str, Any]:
        """The entry of run.json, with how lengths were counted: by tokenizer or estimated."""
        estimate = f"estimated, {CHARACTERS_PER_TOKEN} characters a token"
        return super().facts() | {"lengths": "tokenizer" if self.tokenizer else estimate}

    def check(self, experiment: Conditions) -> None:
        """Refuse, too, a tokenizer without its SHA-256."""
        if (self.tokenizer is None) != (self.tokenizer_sha256 is None):
            raise impossible(
                "workload.tokenizer and workload.tokenizer_sha256 must both be set, or neither",
                "workload.tokenizer_sha256",
            )
        super().check(experiment)


@lru_cache(maxsize=64)
def _select(workload: ShareGPT, seed: int) -> tuple[Lengths, ...]:
    conversations = list(_conversations(workload.path, workload.sha256))
    random.Random(seed).shuffle(conversations)
    count = _counter(workload.tokenizer, workload.tokenizer_sha256)
    fits: list[Lengths] = []
    for item in (Lengths(count(prompt), count(output)) for prompt, output in conversations):
        if item.prompt >= MIN_PROMPT_TOKENS and item.output and item.total <= workload.max_tokens:
            fits.append(item)
        if len(fits) == workload.num_requests:
            return tuple(fits)
    raise BadInput(
        f"workload.num_requests is {workload.num_requests}, but {workload.path} holds {len(fits)} "
        f"conversations of at most workload.max_tokens ({workload.max_tokens})"
    )


@lru_cache(maxsize=1)
def _conversations(path: str, sha256: str) -> tuple[Conversation, ...]:
    """The first two turns of each conversation; the file is read once while its content stays."""
    content = read_bytes(Path(path), limits.LONGEST_SHAREGPT_BYTES)
    with refusing(Path(path), "JSON"):
        value = orjson.loads(content)
    if not isinstance(value, list):
        raise BadInput(f"{path}: must be a list of conversations")
    return tuple(_first_turns(value, path))


def _first_turns(items: list[Any], path: str) -> Iterator[Conversation]:
    for number, item in enumerate(items):
        try:
            turns = item["conversations"]
            if len(turns) >= 2:
                prompt, output = turns[0]["value"], turns[1]["value"]
                if not isinstance(prompt, str) or not isinstance(output, str):
                    raise TypeError
                yield prompt, output
        except (TypeError, KeyError):
            raise BadInput(
                f"{path}: conversation {number} must have 'conversations', a list of turns with "
                "a 'value', which is a text"
            ) from None


@cache
def _counter(tokenizer: str | None, sha256: str | None) -> Counter:
    """A function from text to its number of tokens."""
    if tokenizer is None:
        return lambda text: ceil(len(text) / CHARACTERS_PER_TOKEN)
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise BadInput(
            f"workload.tokenizer is {tokenizer!r}, which needs the package 'tokenizers'; install "
            "it or set workload.tokenizer to null"
        ) from None
    refused = f"workload.tokenizer is {tokenizer!r} but must be a tokenizer.json"
    with _refused(refused):
        loaded = Tokenizer.from_str(read_bytes(Path(tokenizer), limits.LONGEST_JSON_BYTES).decode())

    def count(text: str) -> int:
        with _refused(f"{refused} that takes the texts of the conversations"):
            return len(loaded.encode(text).ids)

    return count


@contextmanager
def _refused(refused: str) -> Iterator[None]:
    """Convert the errors of the package tokenizers to BadInput.

    It raises Exception itself, and a BaseException if its Rust code panics.
    """
    try:
        yield
    except BadInput as error:
        raise BadInput(f"{refused} ({error})") from None
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise BadInput(f"{refused} ({one_line(error)})") from None
        raise
