"""The paper's claims, then the abstract's: what the published data say of each, and ours."""

from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal

from kvscope.api.sections import ReportedRun
from kvscope.api.settings import documents, fields
from kvscope.api.wording import traits
from kvscope_paper.claims.judging import Claim, Finding
from kvscope_paper.claims.values import Values
from kvscope_paper.comparison import Comparison, device_words

FILE = Path(__file__).parent / "claims.yaml"


class Entry(fields.Part):
    """A claim as claims.yaml has it: see there."""

    figures: list[str]
    section: str
    words: str
    published: dict[Literal["holds", "holds in part", "does not hold", "cannot be told"], str]
    judge: str | dict[str, dict[str, Any]]

    @property
    def claim(self) -> Claim:
        """The claim with the function that judges it."""
        ((verdict, evidence),) = self.published.items()
        named = {self.judge: {}} if isinstance(self.judge, str) else self.judge
        ((name, arguments),) = named.items()
        judge = partial(resolve_name(f"kvscope_paper.claims.{name}"), **arguments)
        published = Finding(verdict, evidence)
        return Claim(tuple(self.figures), self.section, self.words, published, judge)


@cache
def claims() -> tuple[Claim, ...]:
    """All claims; BadInput if the file is damaged."""
    return tuple(Entry.model_validate(entry).claim for entry in documents.load(FILE))


def anchor(figure: str) -> str:
    """The id of a figure on the page."""
    return "figure-" + figure.lower().replace(" ", "-")


def judged(found: Iterable[Comparison], runs: Iterable[ReportedRun] = ()) -> list[dict[str, Any]]:
    """Every claim with the findings for the published data and for our values, by device.

    `runs` are those of the study.
    """
    by_device: dict[str, list[Comparison]] = {}
    for comparison in found:
        by_device.setdefault(comparison.device, []).append(comparison)
    runs_of: dict[str, list[ReportedRun]] = {}
    for run in runs:
        runs_of.setdefault(device_words(dict(traits.flat(run.settings))), []).append(run)
    values = {
        device: Values(comparisons, runs_of.get(device, ()))
        for device, comparisons in by_device.items()
    }
    return [
        {
            "figures": [(figure, anchor(figure)) for figure in claim.figures],
            "section": claim.section,
            "words": claim.words,
            "published": claim.published,
            "ours": {device: claim.ours(of_device) for device, of_device in values.items()},
        }
        for claim in claims()
    ]
