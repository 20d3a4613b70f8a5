"""A picture of a plan: bytes of blocks and of requests, requests at once, costs of preemption."""

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from kvscope.api.figures import charts, theme
from kvscope.api.pages import render
from kvscope_model.report.kv_bytes import Losses, link_words, merged

PARTS = ("contents", "empty slots", "padding", "nothing: the group's layers are fewer")
HUES = (theme.PALETTE[2], theme.PALETTE[5], theme.PALETTE[4], theme.GREY)
RECOMPUTE = "recompute"
WIDTH, HEIGHT = 300, 200


def picture(losses: Losses) -> str:
    """An SVG of four plots: a block of each group, and of requests of each length the bytes of a
    token, the number at once, and the seconds to swap them or to compute them again.
    """
    frames = {
        "blocks": pd.DataFrame(_blocks(losses)),
        "requests": pd.DataFrame(_requests(losses)),
        "at_once": pd.DataFrame(_at_once(losses)),
        "seconds": pd.DataFrame(_seconds(losses)),
    }
    links = [f"swap, {link_words(link)}" for link in losses.links]
    return render.svg(charts.Drawing((charts.View(_plots([RECOMPUTE, *links]), frames),)))


def _blocks(losses: Losses) -> Iterator[dict[str, Any]]:
    plan = losses.plan
    for group, count in merged(plan.groups):
        name = f"{count} × {group.kind}" if count > 1 else group.kind
        padding = group.padded_bytes - group.useful_bytes
        sizes = (group.useful_bytes, 0, padding, plan.block_bytes - group.padded_bytes)
        yield from _parts({"group": name}, sizes, 1e3)


def _requests(losses: Losses) -> Iterator[dict[str, Any]]:
    plan = losses.plan
    for held in filter(None, plan.held):
        known = (plan.useful_bytes(held), plan.empty_bytes(held), plan.padding_bytes(held))
        sizes = (*known, plan.reserved_bytes(held) - sum(known))
        yield from _parts({"tokens": f"{held.tokens:,}"}, sizes, 1e3 * held.tokens)


def _parts(given: dict[str, str], sizes: Sequence[int], unit: float) -> Iterator[dict[str, Any]]:
    for order, (name, size) in enumerate(zip(PARTS, sizes, strict=True)):
        yield given | {"part": name, "size": size / unit, "order": order}


def _at_once(losses: Losses) -> Iterator[dict[str, Any]]:
    for held in filter(None, losses.plan.held):
        yield {"tokens": f"{held.tokens:,}", "requests": losses.plan.requests(held)}


def _seconds(losses: Losses) -> Iterator[dict[str, Any]]:
    for held in filter(None, losses.plan.held):
        tokens = held.tokens
        yield {"way": RECOMPUTE, "tokens": tokens, "seconds": losses.recompute_s(tokens)}
        for link in losses.links:
            way = f"swap, {link_words(link)}"
            yield {"way": way, "tokens": tokens, "seconds": losses.swap_s(held, link)}


def _plots(ways: Sequence[str]) -> charts.Spec:
    colour = charts.text("part", scale=charts.colours(PARTS, HUES))
    blocks = {
        "data": {"name": "blocks"},
        "mark": {"type": "bar", "height": {"band": 0.7}},
        "width": WIDTH,
        "height": {"step": 26},
        "title": {"text": "A block of each KV group"},
        "encoding": {
            "y": charts.text("group", sort=None, title=None),
            "x": charts.number("size", title="kB", axis={"tickCount": 4, "labelOverlap": "greedy"}),
            "color": colour,
            "order": charts.number("order"),
        },
    }
    lengths = charts.text("tokens", sort=None, title="tokens of the request")
    requests = _plot("requests", "bar", "A token of a request, by its length") | {
        "encoding": {
            "x": lengths,
            "y": charts.number("size", title="kB a token"),
            "color": colour,
            "order": charts.number("order"),
        },
    }
    at_once = _plot(
        "at_once",
        {"type": "bar", "color": theme.PALETTE[0]},
        "Requests at once, if all have this length",
    ) | {
        "encoding": {"x": lengths, "y": charts.number("requests", title="requests")},
    }
    log = {"scale": {"type": "log"}, "axis": {"tickCount": 4, "labelOverlap": "greedy"}}
    hues = (theme.PALETTE[7], *theme.PALETTE)
    seconds = _plot("seconds", {"type": "line", "point": True}, "A preemption of a request") | {
        "encoding": {
            "x": charts.number("tokens", title="tokens of the request", **log),
            "y": charts.number("seconds", title="s", **log),
            "color": charts.text("way", scale=charts.colours(ways, hues[: len(ways)])),
        },
    }
    # Names at the left are wider in the font of some viewers than in the one that is measured here.
    return {
        "vconcat": [{"hconcat": [blocks, requests]}, {"hconcat": [at_once, seconds]}],
        "resolve": {"scale": {"color": "independent"}},
        "padding": {"left": 32, "right": 8, "top": 5, "bottom": 5},
    }


def _plot(data: str, mark: Any, title: str) -> charts.Spec:
    form = {"width": WIDTH, "height": HEIGHT}
    return {"data": {"name": data}, "mark": mark, "title": {"text": title}} | form
