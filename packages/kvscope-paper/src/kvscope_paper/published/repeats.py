"""Differences between two measurements of an experiment in the paper's artifact."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from kvscope.api.settings import documents, fields
from kvscope_paper.published.figures import PASS, Point, points

FILE = Path(__file__).parent / "repeats.yaml"
SHARE = 0.95  # of repeats that are within the limit
# Metrics of times; counts are equal in all repeats.
OF_TIMES = ("throughput_tokens_per_s", "resume_overhead_as_published_s")


class Again(fields.Part):
    """Values of a figure, and others that were measured in the same experiments."""

    figure: str
    experiment: str
    unit: Literal["s", "tokens/s"]
    published: list[fields.Real] = Field(min_length=1)
    again: list[fields.Real] = Field(min_length=1)


@dataclass(frozen=True)
class Repeat:
    """Two published times of one experiment, and the figures or trials that they are from."""

    first: str
    second: str
    values: tuple[float, float]

    @property
    def difference(self) -> float:
        """The size of the logarithm of their ratio: a share, if it is small."""
        first, second = self.values
        return abs(math.log(first / second))


@cache
def repeats() -> tuple[Repeat, ...]:
    """Every pair of published times of one experiment; BadInput if a file is damaged."""
    return (*_of_two_figures(), *_of_the_artifact())


def _of_two_figures() -> Iterator[Repeat]:
    seen: dict[tuple[object, ...], Point] = {}
    for point in points():
        table = point.table
        if table.x == PASS or table.metric not in OF_TIMES or point.value == 0:
            continue
        other = seen.setdefault(point.experiment, point)
        if other.table.figure != table.figure:
            yield Repeat(other.table.figure, table.figure, (other.value, point.value))


def _of_the_artifact() -> Iterator[Repeat]:
    for entry in documents.load(FILE):
        again = Again.model_validate(entry)
        for pair in zip(again.published, again.again, strict=True):
            yield Repeat(again.figure, again.experiment, pair)


@cache
def repeat_limit() -> float:
    """The 95th percentile of the differences of all pairs, a logarithm.

    It is the quantile at the place 0.95 (n + 1), as in `kvscope_paper.predictive`.
    """
    return float(np.quantile([repeat.difference for repeat in repeats()], SHARE, method="weibull"))
