"""The paper's claims, then the abstract's: what the published data say of each, and ours."""

from collections.abc import Iterable
from typing import Any

from kvscope.report.data import Run
from kvscope.report.settings import flat
from kvscope_paper.claims import abstract, accesses, batching, overflow
from kvscope_paper.claims.judging import Claim
from kvscope_paper.claims.values import Values
from kvscope_paper.comparison import Comparison, device_words

# The claim on the trace's buffers stands before all others, in the paper's Section IV.
_BUFFERS, *_ACCESSES = accesses.CLAIMS
CLAIMS: tuple[Claim, ...] = (
    _BUFFERS,
    *batching.CLAIMS,
    *_ACCESSES,
    *overflow.CLAIMS,
    *abstract.CLAIMS,
)


def anchor(figure: str) -> str:
    """The id of a figure on the page."""
    return "figure-" + figure.lower().replace(" ", "-")


def judged(found: Iterable[Comparison], runs: Iterable[Run] = ()) -> list[dict[str, Any]]:
    """Every claim with the findings for the published data and for our values, by device.

    `runs` are those of the study.
    """
    by_device: dict[str, list[Comparison]] = {}
    for one in found:
        by_device.setdefault(one.device, []).append(one)
    made: dict[str, list[Run]] = {}
    for run in runs:
        made.setdefault(device_words(dict(flat(run.settings))), []).append(run)
    values = {device: Values(own, made.get(device, ())) for device, own in by_device.items()}
    return [
        {
            "figures": [(figure, anchor(figure)) for figure in claim.figures],
            "section": claim.section,
            "words": claim.words,
            "published": claim.published,
            "ours": {device: claim.ours(own) for device, own in values.items()},
        }
        for claim in CLAIMS
    ]
