"""The capacity of a server on its GPUs: start, requests at once, memory, first flag to change."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kvscope.api.models import kv_bytes
from kvscope.api.tables import kv_plan
from kvscope_model.capacity.gpus import Gpu
from kvscope_model.capacity.request import Answer, Variant
from kvscope_model.report.text import aligned, bytes_words, wrapped

AT_ONCE = (
    "At once: one request is in its prefill, others in decode; vLLM's log counts all in prefill."
)
MEMORY = {
    "usable_bytes": "that vLLM may use",
    "weight_bytes": "weights",
    "activation_bytes": "activations (estimate)",
    "other_bytes": "context, links, graphs (estimate)",
    "kv_bytes": "KV cache",
    "kv_low_bytes": "  at least",
    "kv_high_bytes": "  at most",
}
NOT_COUNTED = {
    "cpu_offload_gb": "the weights that it keeps on the host as free",
    "enable_lora": "the memory of adapters",
}
"""Settings that change the memory of a GPU beside its KV cache."""

OTHER_MODEL = "take a smaller or a quantized model, another --gpu, or more --gpus"
LEAST_GAIN = 1.05  # what gives less is no advice


@dataclass(frozen=True)
class Mix:
    """Requests of a prompt and an output length, in tokens."""

    prompt_tokens: int
    output_tokens: int

    @property
    def lengths(self) -> tuple[int, int]:
        """The length as decode begins, and at the end."""
        return self.prompt_tokens + 1, self.prompt_tokens + self.output_tokens


@dataclass(frozen=True)
class Capacity:
    """An answer of vLLM's plan for GPUs, or for this machine's CPU."""

    answer: Answer
    gpu: Gpu | None
    gpus: int
    asked: Sequence[int]
    mixes: Sequence[Mix]
    settings: Mapping[str, str]
    kv_heads: int | None = None

    @property
    def plan(self) -> kv_bytes.KvPlan:
        """The plan."""
        return self.answer.plan

    def held(self, tokens: int) -> kv_bytes.HeldBlocks | None:
        """Blocks that a request of so many tokens holds; None if it cannot run."""
        return next((held for held in self.plan.held if held and held.tokens == tokens), None)

    def requests(self, tokens: int) -> int:
        """Requests of so many tokens at once; 0 if one cannot run."""
        held = self.held(tokens)
        return self.plan.requests(held) if held else 0

    def requests_of(self, mix: Mix) -> int:
        """Requests at once that are, on average, half through their output, one in its prefill."""
        begin, end = (self.held(tokens) for tokens in mix.lengths)
        if begin is None or end is None or sum(end.most) > self.plan.blocks - 1:
            return 0
        room = self.plan.blocks - 1 - max(sum(begin.most), sum(end.most))
        mean = (sum(begin.blocks) + sum(end.blocks)) / 2
        return min(self.plan.max_num_seqs, 1 + int(room / mean))

    def lines(self) -> Iterator[str]:
        """The answer in lines of at most 80 columns."""
        plan = self.plan
        yield from wrapped(f"{plan.model} on {self._where()}, as vLLM {self.answer.vllm} plans it")
        yield from wrapped(self.start())
        for sentence in (*self.answer.notes, *self.differences(), *self.never_hit()):
            yield from wrapped(f"- {sentence}")
        yield ""
        yield from aligned(self._request_rows())
        yield from wrapped(AT_ONCE)
        yield ""
        yield from aligned(self._memory_rows())
        if self.plan.blocks:
            yield from wrapped(self.longest())
        if advice := self.advice():
            yield from wrapped(f"First flag to change: {advice}")
        if others := self.others():
            yield from wrapped(f"Other flags: {others}")

    def _where(self) -> str:
        if self.gpu is None:
            return "this machine's CPU (another platform has other blocks)"
        return f"{self.gpus} × {self.gpu.name}"

    def start(self) -> str:
        """Whether the server starts, and the two numbers of its log."""
        plan = self.plan
        if refused := self.why_not():
            fitted = f" With max_model_len={plan.max_model_len} it has {self._log()}."
            return f"It does not start: {refused}{fitted if self._fitted() else ''}"
        return f"It starts: {self._log()}."

    def why_not(self) -> str | None:
        """Why the server does not start, in whole sentences; None if it does."""
        refused = self.answer.refused or self.plan.refused
        return refused and refused.rstrip(".") + "."

    def _fitted(self) -> bool:
        """True if the server does not start, and would with a shorter longest request."""
        return bool(self.answer.refused and self.plan.blocks)

    def _log(self) -> str:
        plan = self.plan
        return (
            f"{plan.blocks:,} blocks; it logs a KV cache of {plan.capacity_tokens:,} tokens and "
            f"{plan.max_concurrency:.2f} requests of {plan.max_model_len:,} at once"
        )

    def differences(self) -> Iterator[str]:
        """Settings that vLLM has planned otherwise than they were asked for."""
        asked = self.settings.get("block_size")
        for group in self.plan.groups:
            if asked and not kv_plan.keeps_state(group) and str(group.block_tokens) != asked:
                yield (
                    f"block_size={asked} was asked for, blocks of {group.kind} have "
                    f"{group.block_tokens:,} tokens: KV groups of one pool have blocks of as many "
                    "bytes, and attention backends take certain sizes"
                )
                break
        yield from self.kept_by_several()
        for name, what in NOT_COUNTED.items():
            if self.settings.get(name, "false").lower() not in ("false", "0"):
                yield f"{name} is set: the estimate of the GPU's memory does not count {what}"
        for name in ("max_num_batched_tokens", "max_num_seqs", "max_model_len"):
            wanted, planned = self.settings.get(name), getattr(self.plan, name)
            if wanted and wanted.isdigit() and int(wanted) != planned:
                yield f"{name}={wanted} was asked for, {planned:,} is planned"

    def kept_by_several(self) -> Iterator[str]:
        """K and V that more ranks than one keep; decode-context-parallel ranks divide tokens."""
        ranks, dividing = map(self._size, ("tensor_parallel_size", "decode_context_parallel_size"))
        times = ranks // dividing
        if any("MLA" in group.kind for group in self.plan.groups):
            if times > 1:
                yield f"the latent of each token has no heads to divide: it is kept {times} times"
        elif self.kv_heads and ranks > self.kv_heads and times > self.kv_heads:
            kept = times // self.kv_heads
            yield f"{self.kv_heads} KV heads on {ranks} ranks: each is kept {kept} times"

    def _size(self, name: str) -> int:
        return int(self.settings.get(name) or 1)

    def never_hit(self) -> Iterator[str]:
        """Why the prefix cache can never be hit, where no request fills a block of a group."""
        plan = self.plan
        largest = max(group.block_tokens for group in plan.groups)
        if plan.prefix_caching and largest > plan.max_model_len:
            yield (
                f"prefix caching is on, but no request of {plan.max_model_len:,} tokens fills a "
                f"block of {largest:,}: nothing can be found again"
            )

    def _request_rows(self) -> Iterator[list[str]]:
        plan = self.plan
        yield ["requests of … tokens", "at once", "contents", "empty", "padding", "reserved"]
        for tokens in self.asked:
            held = self.held(tokens)
            if held is None:
                yield [f"{tokens:,}", "cannot run", *4 * [""]]
                continue
            sizes = (plan.useful_bytes(held), plan.empty_bytes(held), plan.padding_bytes(held))
            words = [bytes_words(size) for size in (*sizes, plan.reserved_bytes(held))]
            yield [f"{tokens:,}", f"{plan.requests(held):,}", *words]
        for mix in self.mixes:
            mixed = f"{mix.prompt_tokens:,} + {mix.output_tokens:,}"
            yield [mixed, f"{self.requests_of(mix):,}", *4 * [""]]

    def _memory_rows(self) -> Iterator[list[str]]:
        if self.answer.memory.get("stated", True):
            yield ["memory of a GPU", ""]
            yield ["  KV cache, as stated", bytes_words(self.plan.memory_bytes)]
            weights = " + ".join(bytes_words(rank.weight_bytes) for rank in self.plan.ranks)
            yield ["  weights, beside it", weights]
            return
        ranks = self.answer.memory["ranks"]
        stages = [f"stage {n}" if len(ranks) > 1 else "" for n in range(len(ranks))]
        yield ["memory of a GPU", *stages]
        for key, words in MEMORY.items():
            yield [f"  {words}", *(_room(rank[key]) for rank in ranks)]

    def longest(self) -> str:
        """The longest request, and the KV group that holds most of its blocks."""
        plan = self.plan
        most = max(range(len(plan.groups)), key=lambda n: plan.longest[n])
        held = sum(plan.longest)
        return (
            f"Longest request: {plan.max_model_len:,} tokens in {held:,} of {plan.blocks - 1:,} "
            f"blocks, {plan.longest[most]:,} of them of {plan.groups[most].kind}."
        )

    def advice(self) -> str:
        """The flag that gives most, and what it gives; '' if none is worth it."""
        if self.plan.refused and self.answer.refused is None:
            return self.plan.refused.partition("give ")[2]
        if self._fitted():
            return f"max_model_len={self.plan.max_model_len}, the longest that fits"
        best = self._worth()[:1]
        if not best and not self.plan.blocks:
            stated = self.answer.memory.get("stated")
            return "none; " + ("give more --memory" if stated else OTHER_MODEL)
        return "".join(self._gain(variant) for variant in best)

    def others(self) -> str:
        """The other flags that give more, and what they give."""
        return "; ".join(map(self._gain, self._worth()[0 if self._fitted() else 1 :]))

    def _worth(self) -> list[Variant]:
        """Settings that give more requests, the most first; more GPUs are the last."""
        worth = [
            variant
            for variant in self.answer.variants
            if variant.requests >= max(1, LEAST_GAIN * self.requests(variant.tokens))
        ]
        return sorted(worth, key=lambda variant: (variant.setting[0] == "-", -variant.requests))

    def _gain(self, variant: Variant) -> str:
        now = self.requests(variant.tokens)
        return (
            f"{variant.setting}: {variant.requests:,} requests of {variant.tokens:,} tokens at "
            f"once" + (f" instead of {now:,}" if now else "")
        )

    def as_json(self) -> dict[str, Any]:
        """The answer as an object."""
        return {
            "gpu": self.gpu.name if self.gpu else None,
            "gpus": self.gpus,
            "starts": self.why_not() is None,
            "why_not": self.why_not(),
            "notes": [*self.answer.notes, *self.differences(), *self.never_hit()],
            "memory": self.answer.memory.get("ranks") or None,
            "at_once": {str(tokens): self.requests(tokens) for tokens in self.asked},
            "mixes": [
                {
                    "prompt_tokens": mix.prompt_tokens,
                    "output_tokens": mix.output_tokens,
                    "at_once": self.requests_of(mix),
                }
                for mix in self.mixes
            ],
            "first_flag": self.advice() or None,
            "flags": [asdict(variant) for variant in self._worth()],
        }


def _room(size: float) -> str:
    return bytes_words(size) if size > 0 else "none"
