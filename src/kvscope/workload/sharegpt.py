"""ShareGPT: the lengths of real conversations.

From the user's own copy of ShareGPT_V3_unfiltered_cleaned_split.json: the first two turns of each
conversation are a prompt and its output; conversations are shuffled by the seed, and those that
fit are kept. Only the lengths are used, never the text.
"""

import random
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from math import ceil
from pathlib import Path
from typing import Any

import orjson

from kvscope.errors import BadInput
from kvscope.plan import sources
from kvscope.plan.experiment import ShareGPT
from kvscope.workload.lengths import Lengths

MIN_PROMPT_TOKENS = 4
# A rule of thumb for English text; used where no tokenizer is given.
CHARACTERS_PER_TOKEN = 4

Counter = Callable[[str], int]
Conversation = tuple[str, str]


def lengths(workload: ShareGPT, seed: int) -> list[Lengths]:
    """The lengths of num_requests conversations that fit into max_tokens, in shuffled order.

    BadInput if a file is not the one that was planned with, is malformed, or holds too few.
    """
    sources.verify(workload)
    return list(_select(workload, seed))


def length_source(workload: ShareGPT) -> dict[str, str]:
    """How text became lengths: by which tokenizer, or by the estimate."""
    if workload.tokenizer is None or workload.tokenizer_sha256 is None:
        return {"lengths": f"estimated, {CHARACTERS_PER_TOKEN} characters a token"}
    return {
        "lengths": "tokenizer",
        "tokenizer": workload.tokenizer,
        "tokenizer_sha256": workload.tokenizer_sha256,
    }


@lru_cache(maxsize=64)
def _select(workload: ShareGPT, seed: int) -> tuple[Lengths, ...]:
    conversations = list(_conversations(workload.path, workload.sha256))
    random.Random(seed).shuffle(conversations)
    count = _counter(workload.tokenizer, workload.tokenizer_sha256)
    kept: list[Lengths] = []
    for item in (Lengths(count(prompt), count(output)) for prompt, output in conversations):
        if item.prompt >= MIN_PROMPT_TOKENS and item.output and item.total <= workload.max_tokens:
            kept.append(item)
        if len(kept) == workload.num_requests:
            return tuple(kept)
    raise BadInput(
        f"workload.num_requests is {workload.num_requests}, but {workload.path} holds {len(kept)} "
        f"conversations of at most workload.max_tokens ({workload.max_tokens})"
    )


@lru_cache(maxsize=1)
def _conversations(path: str, sha256: str) -> tuple[Conversation, ...]:
    """The first two turns of each conversation; the file is read once while its content stays."""
    try:
        value = orjson.loads(Path(path).read_bytes())
    except (orjson.JSONDecodeError, OSError) as error:
        raise BadInput(f"{path}: not readable as JSON ({error})") from None
    if not isinstance(value, list):
        raise BadInput(f"{path}: must be a list of conversations")
    return tuple(_first_turns(value, path))


def _first_turns(items: list[Any], path: str) -> Iterator[Conversation]:
    for number, item in enumerate(items):
        try:
            turns = item["conversations"]
            if len(turns) >= 2:
                yield str(turns[0]["value"]), str(turns[1]["value"])
        except (TypeError, KeyError):
            raise BadInput(
                f"{path}: conversation {number} must have 'conversations', a list of turns with "
                "a 'value'"
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
    try:
        loaded = Tokenizer.from_file(tokenizer)
    except Exception as error:  # the package raises bare Exception
        raise BadInput(
            f"workload.tokenizer is {tokenizer!r} but must be a tokenizer.json ({error})"
        ) from None
    return lambda text: len(loaded.encode(text).ids)
