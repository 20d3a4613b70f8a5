"""Where the memory of a KV cache goes, and what a preemption costs: as text and JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from kvscope.api.machine import machine
from kvscope.api.models import kv_bytes
from kvscope.api.tables import kv_plan
from kvscope.api.words import quantities
from kvscope_model.hardware.hardware import Hardware
from kvscope_model.report.text import aligned, bytes_words, wrapped

SHORTEST = 256  # tokens: from this length on, doubled, recompute and swap are compared
LINKS = {13.0: "PCIe 3", 26.0: "PCIe 4", 52.0: "PCIe 5", 200.0: "NVLink-C2C"}


def lengths(asked: Sequence[int], longest: int) -> list[int]:
    """The lengths of requests to plan: those asked for, and doubled ones up to the longest of
    these, or to that of the model."""
    doubled, length = [], SHORTEST
    while length < min(longest, max(asked)):
        doubled.append(length)
        length *= 2
    return sorted({*asked, *doubled})


@dataclass(frozen=True)
class Losses:
    """A plan, and what it costs to lose requests of the lengths that were asked for.

    `links` are in GB/s, each way. The hardware computes tokens again.
    """

    plan: kv_bytes.KvPlan
    asked: Sequence[int]
    hardware_name: str
    hardware: Hardware
    links: Sequence[float]

    @property
    def vllm(self) -> str:
        """The version of the vLLM that planned it."""
        found = machine.installed_vllm()
        return found[1] if found else "of an unknown version"

    def held(self, tokens: int) -> kv_bytes.HeldBlocks | None:
        """Blocks that a request of so many tokens holds; None if it cannot run."""
        return next((one for one in self.plan.held if one and one.tokens == tokens), None)

    def recompute_s(self, tokens: int) -> float:
        """Seconds to compute so many tokens again in passes that have nothing else to do.

        Products at the speed of large ones, attention at that of the prefill kernel.
        """
        products = 2 * self.plan.weights * tokens
        attention = self.plan.recompute_flops(tokens) - products
        rates = self.hardware.gemm_flops_per_s, self.hardware.attention_flops_per_s
        return products / rates[0] + attention / rates[1]

    def swap_s(self, held: kv_bytes.HeldBlocks, link: float) -> float:
        """Seconds to copy the contents out and back, one after the other."""
        return self.plan.swap_bytes(held) / (link * 1e9)

    def crossing(self, link: float) -> str:
        """From which length on swap is quicker than recompute, of lengths that double."""
        known = [one for one in self.plan.held if one and one.tokens >= SHORTEST]
        quicker = [self.swap_s(one, link) < self.recompute_s(one.tokens) for one in known]
        if not any(quicker):
            return f"at no length up to {known[-1].tokens:,} tokens" if known else "unknown"
        if all(quicker):
            return f"at every length from {known[0].tokens:,} tokens on"
        changes = [n for n in range(1, len(known)) if quicker[n] != quicker[n - 1]]
        words = [
            f"{'from' if quicker[n] else 'up to'} about {known[n].tokens:,} tokens" for n in changes
        ]
        return " and ".join(words)

    def as_json(self) -> dict[str, Any]:
        """The plan, each request, and each link."""
        requests = [self._request(tokens) for tokens in self.asked]
        links = [{"gb_per_s": link, "swap_is_quicker": self.crossing(link)} for link in self.links]
        own = {"vllm": self.vllm, "hardware": self.hardware_name}
        plan = {k: v for k, v in asdict(self.plan).items() if k not in ("held", "attention")}
        plan |= {"block_bytes": self.plan.block_bytes}
        plan["groups"] = [
            asdict(one) | {"state": kv_plan.keeps_state(one)} for one in self.plan.groups
        ]
        return own | plan | {"requests": requests, "links": links}

    def _request(self, tokens: int) -> dict[str, Any]:
        held, plan = self.held(tokens), self.plan
        if held is None:
            return {"tokens": tokens, "runs": False}
        return {
            "tokens": tokens,
            "runs": True,
            "blocks": held.blocks,
            "most_blocks": held.most,
            "useful_bytes": plan.useful_bytes(held),
            "empty_bytes": plan.empty_bytes(held),
            "padding_bytes": plan.padding_bytes(held),
            "reserved_bytes": plan.reserved_bytes(held),
            "requests": plan.requests(held),
            "pool_tokens": plan.requests(held) * tokens,
            "swap_bytes": plan.swap_bytes(held),
            "recompute_flops": plan.recompute_flops(tokens),
            "recompute_s": self.recompute_s(tokens),
            "swap_s": {f"{link:g}": self.swap_s(held, link) for link in self.links},
        }

    def lines(self) -> list[str]:
        """KV groups, bytes of requests, and where swap is quicker, in lines of text."""
        return [
            *aligned(self._group_rows()),
            "",
            *aligned(self._request_rows()),
            "",
            *wrapped(f"Swap, out and back, is quicker than recompute on {self.hardware.title}"),
            *(f"  at {link_words(link)}: {self.crossing(link)}" for link in self.links),
        ]

    def _group_rows(self) -> Iterator[list[str]]:
        yield ["KV group", "layers", "tokens", "window", "useful", "padded", "reserved"]
        yield ["", "", "a block", "", "bytes", "bytes", "bytes"]
        for group, count in merged(self.plan.groups):
            window = f"{group.window_tokens:,}" if group.window_tokens else ""
            name = f"{count} × {group.kind}" if count > 1 else group.kind
            sizes = (group.useful_bytes, group.padded_bytes, self.plan.block_bytes)
            tokens = "a state" if kv_plan.keeps_state(group) else f"{group.block_tokens:,}"
            yield [name, str(group.layers), tokens, window, *(f"{size:,}" for size in sizes)]

    def _request_rows(self) -> Iterator[list[str]]:
        """A column for each length."""
        found = [self._request(tokens) for tokens in self.asked]

        def row(heading: str, words: Any) -> list[str]:
            return [heading, *(words(one) if one["runs"] else "–" for one in found)]

        yield ["a request of … tokens", *(f"{one['tokens']:,}" for one in found)]
        yield row("blocks", lambda one: f"{sum(one['blocks']):,}")
        yield row("at most, in prefill", lambda one: f"{sum(one['most_blocks']):,}")
        yield row("contents a token", lambda one: bytes_words(one["useful_bytes"] / one["tokens"]))
        yield row("reserved a token", lambda o: bytes_words(o["reserved_bytes"] / o["tokens"]))
        yield row(
            "contents of reserved", lambda o: f"{o['useful_bytes'] / o['reserved_bytes']:.1%}"
        )
        yield row("to swap", lambda one: bytes_words(one["swap_bytes"]))
        for link in self.links:
            name = f"{link:g}"
            yield row(
                f"  at {name} GB/s",
                lambda one, own=name: quantities.short_duration(one["swap_s"][own]),
            )
        yield row("to recompute", lambda one: f"{one['recompute_flops'] / 1e12:,.3g} TFLOP")
        yield row(
            f"  on {self.hardware_name}", lambda one: quantities.short_duration(one["recompute_s"])
        )


def merged(groups: Sequence[kv_plan.KvGroup]) -> list[tuple[kv_plan.KvGroup, int]]:
    """Each run of equal groups: the group, and the number of them."""
    return [(group, len([*same])) for group, same in groupby(groups)]


def link_words(link: float) -> str:
    """'26 GB/s (PCIe 4)'."""
    return f"{link:g} GB/s" + (f" ({LINKS[link]})" if link in LINKS else "")
