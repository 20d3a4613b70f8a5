"""Memory of a KV cache by use, and cost of a preemption: as text, JSON and a picture."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import pandas as pd

from kvscope.api.figures import charts, theme
from kvscope.api.machine import installed_vllm
from kvscope.api.models import kv_bytes
from kvscope.api.pages import render
from kvscope.api.tables import kv_plan
from kvscope.api.words import quantities
from kvscope_model.hardware.hardware import Hardware

SHORTEST = 256  # tokens: from this length on, doubled, recompute and swap are compared
LINKS = {13.0: "PCIe 3", 26.0: "PCIe 4", 52.0: "PCIe 5", 200.0: "NVLink-C2C"}
PARTS = ("contents", "padding", "nothing: the group's layers are fewer")
HUES = (theme.PALETTE[2], theme.PALETTE[4], theme.GREY)


def lengths(asked: Sequence[int], longest: int) -> list[int]:
    """The lengths of requests to plan: those asked for, and doubled ones up to the longest."""
    doubled, length = [], SHORTEST
    while length < longest:
        doubled.append(length)
        length *= 2
    return sorted({*asked, *doubled})


@dataclass(frozen=True)
class Losses:
    """Plan of a cache, and the cost of losing requests of given lengths.

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
        version = installed_vllm()
        return version[1] if version else "of an unknown version"

    def held(self, tokens: int) -> kv_bytes.HeldBlocks | None:
        """Blocks that a request of so many tokens holds; None if it cannot run."""
        return next(
            (
                held_blocks
                for held_blocks in self.plan.held
                if held_blocks and held_blocks.tokens == tokens
            ),
            None,
        )

    def recompute_s(self, tokens: int) -> float:
        """Seconds to compute tokens again in passes that compute no other tokens.

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
        measured = [
            held_blocks
            for held_blocks in self.plan.held
            if held_blocks and held_blocks.tokens >= SHORTEST
        ]
        quicker = [
            self.swap_s(held_blocks, link) < self.recompute_s(held_blocks.tokens)
            for held_blocks in measured
        ]
        if not any(quicker):
            return f"at no length up to {measured[-1].tokens:,} tokens" if measured else "unknown"
        if all(quicker):
            return f"at every length from {measured[0].tokens:,} tokens on"
        changes = [n for n in range(1, len(measured)) if quicker[n] != quicker[n - 1]]
        words = [
            f"{'from' if quicker[n] else 'up to'} about {measured[n].tokens:,} tokens"
            for n in changes
        ]
        return " and ".join(words)

    def as_json(self) -> dict[str, Any]:
        """The plan, each request, and each link."""
        requests = [self._request(tokens) for tokens in self.asked]
        links = [{"gb_per_s": link, "swap_is_quicker": self.crossing(link)} for link in self.links]
        head = {"vllm": self.vllm, "hardware": self.hardware_name}
        plan = {k: v for k, v in asdict(self.plan).items() if k not in ("held", "attention")}
        plan |= {"block_bytes": self.plan.block_bytes}
        plan["groups"] = [
            asdict(group) | {"state": kv_plan.keeps_state(group)} for group in self.plan.groups
        ]
        return head | plan | {"requests": requests, "links": links}

    def _request(self, tokens: int) -> dict[str, Any]:
        held_blocks, plan = self.held(tokens), self.plan
        if held_blocks is None:
            return {"tokens": tokens, "runs": False}
        return {
            "tokens": tokens,
            "runs": True,
            "blocks": held_blocks.blocks,
            "most_blocks": held_blocks.most,
            "useful_bytes": plan.useful_bytes(held_blocks),
            "padding_bytes": plan.padding_bytes(held_blocks),
            "reserved_bytes": plan.reserved_bytes(held_blocks),
            "requests": plan.requests(held_blocks),
            "pool_tokens": plan.requests(held_blocks) * tokens,
            "swap_bytes": plan.swap_bytes(held_blocks),
            "recompute_flops": plan.recompute_flops(tokens),
            "recompute_s": self.recompute_s(tokens),
            "swap_s": {f"{link:g}": self.swap_s(held_blocks, link) for link in self.links},
        }

    def lines(self) -> list[str]:
        """All of it in lines of text."""
        plan = self.plan
        return [
            f"{plan.model}, as vLLM {self.vllm} plans it for a {plan.platform.upper()} "
            f"(another platform has other blocks):",
            f"{bytes_words(plan.memory_bytes)} are {plan.blocks:,} blocks of "
            f"{plan.block_bytes:,} bytes, {plan.capacity_tokens:,} tokens in requests of "
            f"{plan.max_model_len:,}: {plan.max_concurrency:.2f} of these at once",
            *self._refusal(),
            "",
            *aligned(self._group_rows()),
            "",
            *aligned(self._request_rows()),
            "",
            f"Swap, out and back, is quicker than recompute on {self.hardware.title}",
            *(f"  at {link_words(link)}: {self.crossing(link)}" for link in self.links),
        ]

    def _refusal(self) -> Iterator[str]:
        if self.plan.refused:
            yield f"vLLM does not start with such blocks on this platform: {self.plan.refused}"

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
        requests = [self._request(tokens) for tokens in self.asked]

        def row(heading: str, words: Any) -> list[str]:
            return [heading, *(words(request) if request["runs"] else "–" for request in requests)]

        yield ["a request of … tokens", *(f"{request['tokens']:,}" for request in requests)]
        yield row("blocks", lambda request: f"{sum(request['blocks']):,}")
        yield row("at most, in prefill", lambda request: f"{sum(request['most_blocks']):,}")
        yield row("useful", lambda request: bytes_words(request["useful_bytes"]))
        yield row(
            "useful a token",
            lambda request: bytes_words(request["useful_bytes"] / request["tokens"]),
        )
        yield row("reserved", lambda request: bytes_words(request["reserved_bytes"]))
        yield row("reserved a token", lambda o: bytes_words(o["reserved_bytes"] / o["tokens"]))
        yield row("useful of reserved", lambda o: f"{o['useful_bytes'] / o['reserved_bytes']:.1%}")
        yield row("requests at once", lambda request: f"{request['requests']:,}")
        yield row("tokens in the pool", lambda request: f"{request['pool_tokens']:,}")
        yield row("to swap", lambda request: bytes_words(request["swap_bytes"]))
        for link in self.links:
            name = f"{link:g}"
            yield row(
                f"  at {name} GB/s",
                lambda request, own=name: quantities.short_duration(request["swap_s"][own]),
            )
        yield row("to recompute", lambda request: f"{request['recompute_flops'] / 1e12:,.3g} TFLOP")
        yield row(
            f"  on {self.hardware_name}",
            lambda request: quantities.short_duration(request["recompute_s"]),
        )

    def picture(self) -> str:
        """An SVG: the bytes of a block of each group, and those of requests of each length."""
        return render.svg(charts.Drawing((charts.View(_picture(), self._frames()),)))

    def _frames(self) -> dict[str, pd.DataFrame]:
        plan = self.plan
        blocks: list[dict[str, Any]] = []
        for group, count in merged(plan.groups):
            name = f"{count} × {group.kind}" if count > 1 else group.kind
            padding = group.padded_bytes - group.useful_bytes
            sizes = (group.useful_bytes, padding, plan.block_bytes - group.padded_bytes)
            blocks += _parts({"group": name}, sizes, 1e3)
        requests: list[dict[str, Any]] = []
        for held_blocks in filter(None, plan.held):
            useful, padding = plan.useful_bytes(held_blocks), plan.padding_bytes(held_blocks)
            sizes = (useful, padding, plan.reserved_bytes(held_blocks) - useful - padding)
            requests += _parts(
                {"tokens": f"{held_blocks.tokens:,}"}, sizes, 1e3 * held_blocks.tokens
            )
        return {"blocks": pd.DataFrame(blocks), "requests": pd.DataFrame(requests)}


def _parts(labels: dict[str, str], sizes: Sequence[int], unit: float) -> list[dict[str, Any]]:
    parts = enumerate(zip(PARTS, sizes, strict=True))
    return [labels | {"part": name, "size": size / unit, "order": n} for n, (name, size) in parts]


def _picture() -> charts.Spec:
    colour = charts.text("part", scale=charts.colours(PARTS, HUES))
    bars = {"mark": {"type": "bar", "height": {"band": 0.7}}, "width": 250, "height": {"step": 26}}
    blocks = bars | {
        "data": {"name": "blocks"},
        "title": {"text": "A block of each KV group"},
        "encoding": {
            "y": charts.text("group", sort=None, title=None),
            "x": charts.number("size", title="kB", axis={"tickCount": 4, "labelOverlap": "greedy"}),
            "color": colour,
            "order": charts.number("order"),
        },
    }
    requests = {
        "data": {"name": "requests"},
        "mark": {"type": "bar"},
        "width": 300,
        "height": 200,
        "title": {"text": "A token of a request, by its length"},
        "encoding": {
            "x": charts.text("tokens", sort=None, title="tokens of the request"),
            "y": charts.number("size", title="kB a token"),
            "color": colour,
            "order": charts.number("order"),
        },
    }
    # Names at the left are wider in the font of some viewers than in the one that is measured here.
    return {
        "hconcat": [blocks, requests],
        "padding": {"left": 32, "right": 8, "top": 5, "bottom": 5},
    }


def merged(groups: Sequence[kv_plan.KvGroup]) -> list[tuple[kv_plan.KvGroup, int]]:
    """Each run of equal groups: the group, and the number of them."""
    return [(group, len([*same])) for group, same in groupby(groups)]


def aligned(rows: Iterator[list[str]]) -> list[str]:
    """Rows as lines: the first column to the left, the others to the right."""
    table_rows = [*rows]
    widths = [max(len(row[n]) for row in table_rows) for n in range(len(table_rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if n else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table_rows
    ]


def bytes_words(size: float) -> str:
    """'1.5 GiB', '262 KiB', '96 bytes'."""
    for unit, unit_bytes in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= unit_bytes:
            return f"{size / unit_bytes:,.4g} {unit}"
    return f"{size:,.3g} bytes"


def link_words(link: float) -> str:
    """'26 GB/s (PCIe 4)'."""
    return f"{link:g} GB/s" + (f" ({LINKS[link]})" if link in LINKS else "")
