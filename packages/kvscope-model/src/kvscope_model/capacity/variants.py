"""Settings that may give a server room for more requests; each is planned before it is said."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvscope.api.models import kv_bytes

TOKENS_OF_A_PASS = 2048  # the least that serves prompts well
MOST_TIMES = 64  # as many GPUs as were asked for are tried at most
TRIES = 3  # numbers of GPUs that are planned
RANKS = "tensor_parallel_size"
UTILIZATION = ("gpu_memory_utilization", "0.95")


@dataclass(frozen=True)
class Candidate:
    """A setting as a user writes it, and the arguments of `vllm serve` that it changes."""

    setting: str
    changed: Mapping[str, str]

    def arguments(self, given: Sequence[str]) -> list[str]:
        """Arguments with the change."""
        words = [f"--{name.replace('_', '-')}" for name in self.changed]
        kept = [word for word in given if word.partition("=")[0] not in words]
        return [
            *kept,
            *(f"{word}={v}" for word, v in zip(words, self.changed.values(), strict=True)),
        ]


def flags(
    plan: kv_bytes.KvPlan, arguments: Sequence[str], kv_heads: int | None, of_gpu: bool
) -> Iterator[Candidate]:
    """Settings that may give a server more room on the same GPUs.

    `of_gpu` is true if the memory of the KV cache follows from that of the GPU.
    """
    longest = max(filter(None, plan.held), key=lambda held: held.tokens, default=None)
    latent = any("MLA" in group.kind for group in plan.groups)
    heads, ranks = 1 if latent else kv_heads, int(settings(arguments).get(RANKS, "1"))
    yield from _new(arguments, "kv_cache_dtype", "fp8")
    if of_gpu:
        yield from _new(arguments, *UTILIZATION)
    if longest and plan.requests(longest) == plan.max_num_seqs:
        yield _of("max_num_seqs", 2 * plan.max_num_seqs)
    if of_gpu:
        yield from _fewer_tokens(plan)
    if heads and ranks > heads:
        yield from _new(arguments, "decode_context_parallel_size", ranks // heads)


def for_weights(
    plan: kv_bytes.KvPlan, arguments: Sequence[str], is_quantized: bool
) -> Iterator[Candidate]:
    """Settings that may leave memory beside the weights, on the same GPUs."""
    yield from _new(arguments, *UTILIZATION)
    yield from _fewer_tokens(plan)
    if not is_quantized:
        yield from _new(arguments, "quantization", "fp8")


def more_gpus(gpus: int, arguments: Sequence[str], least: float) -> Iterator[Candidate]:
    """Twice as many GPUs, four times as many and so on, as tensor parallel ranks.

    The weights need at least so many times the memory that there is, and fewer are not tried.
    """
    ranks = int(settings(arguments).get(RANKS, "1"))
    powers = range(1, MOST_TIMES.bit_length())
    times = [2**n for n in powers if 2**n > least][:TRIES]
    for n in times:
        yield Candidate(f"--gpus {n * gpus}", {RANKS: str(n * ranks)})


def settings(arguments: Sequence[str]) -> dict[str, str]:
    """Arguments as KEY=VALUE names them."""
    pairs = (word.removeprefix("--").partition("=") for word in arguments)
    return {name.replace("-", "_"): value for name, _, value in pairs}


def _fewer_tokens(plan: kv_bytes.KvPlan) -> Iterator[Candidate]:
    """Fewer tokens in a pass, whose activations take less memory."""
    if plan.max_num_batched_tokens > TOKENS_OF_A_PASS:
        yield _of("max_num_batched_tokens", TOKENS_OF_A_PASS)


def _new(arguments: Sequence[str], name: str, value: object) -> Iterator[Candidate]:
    """A setting, unless its name is among the arguments."""
    if name not in settings(arguments):
        yield _of(name, value)


def _of(name: str, value: object) -> Candidate:
    return Candidate(f"{name}={value}", {name: str(value)})
