"""The map of winners: in each cell the policy with the most throughput, if that is clear."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kvscope.base.statistics import Interval
from kvscope.plan.figures import Axes
from kvscope.report.data import StudyData
from kvscope.report.figures.winners import TIE, draw
from kvscope.report.load import load
from kvscope.report.not_modeled import is_ample, lacks_submission

from .report_fixture import Fake, write_study

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

ROOMS = (6, 12, 48)
RIVALS = (  # in these rooms
    ("large blocks, recompute", "large blocks, swap"),
    ("recompute", "swap"),
    ("ample", "swap, ample"),
)
AXES = (Axes(x="cache.blocks", colour="batching"),)


def rivals() -> Iterator[Fake]:
    """Swap in three rooms: slower than recompute, faster, and as fast."""
    for blocks, (base, other), speed in zip(ROOMS, RIVALS, (0.5, 2.0, 1.0), strict=True):
        shared = {"cache.blocks": blocks, "batching": "chunked"}
        yield Fake(shared | {"overflow": "recompute"}, base, stall=False)
        yield Fake(shared | {"overflow": "swap"}, other, speed=speed, stall=False)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyData:
    place = tmp_path_factory.mktemp("winners")
    write_study(place, list(rivals()))
    return load(["fake"], place)


def test_a_cell_names_what_is_better_than_the_base(study: StudyData) -> None:
    drawing = draw(study, AXES)
    assert drawing is not None
    (table,) = drawing.views[0].data.values()
    found = dict(zip(table["order"].map(lambda at: ROOMS[at]), table["winner"], strict=True))
    assert found == dict(zip(ROOMS, (TIE, "swap", TIE), strict=True))
    assert [bool(margin) for margin in table["margin"]] == [name != TIE for name in table["winner"]]


def test_a_map_needs_axes_and_rivals(study: StudyData) -> None:
    assert draw(study, ()) is None
    alone = Axes(x="cache.blocks", colour="batching", where={"overflow": "swap"})
    assert draw(study, (alone,)) is None


def test_the_margin_is_the_gain_over_the_base(study: StudyData) -> None:
    drawing = draw(study, AXES)
    assert drawing is not None
    (table,) = drawing.views[0].data.values()
    for cell in table[table["winner"] != TIE].to_dict("records"):
        found = {
            str(run.varied["overflow"]): run.number("throughput_tokens_per_s").value
            for run in study.runs
            if run.varied["cache.blocks"] == ROOMS[int(cell["order"])]
        }
        shown = float(str(cell["margin"]).strip("+\xa0%"))
        assert math.isclose(shown, 100 * (found["swap"] / found["recompute"] - 1), abs_tol=1)


def test_seeds_are_compared_pair_by_pair(tmp_path: Path) -> None:
    """Requests of one seed take up to four times as long as of another, with either policy."""
    gains = {16: (2.0, 2.0, 2.0), 24: (2.0, 0.9, 1.0)}  # of swap, by room and seed
    fakes = [
        Fake(
            {"cache.blocks": room, "batching": "chunked", "overflow": policy, "seed": seed},
            policy,
            sections={"seed": seed, "tracing": None},  # not held against its requests
            repeats=2,
            stall=False,
            speed=2.0 ** (seed - 1) * (gain if policy == "swap" else 1.0),
        )
        for room, gains_of_seeds in gains.items()
        for seed, gain in enumerate(gains_of_seeds)
        for policy in ("recompute", "swap")
    ]
    write_study(tmp_path, fakes)
    drawing = draw(load(["fake"], tmp_path), AXES)
    assert drawing is not None
    (table,) = drawing.views[0].data.values()
    found = dict(zip(table["x"], table["winner"], strict=True))
    assert found == {"16": "swap", "24": TIE}


class Counted(NamedTuple):
    """What is asked of a run: where its times are from, and its metrics."""

    time_source: str
    metrics: dict[str, float]

    def number(self, metric: str) -> Interval:
        value = self.metrics.get(metric, math.nan)
        return Interval(value, value, value)


@pytest.mark.parametrize(
    ("source", "metrics", "ample"),
    [
        ("modeled", {"preemptions": 0.0}, True),
        ("modeled", {"preemptions": 0.0, "prefix_cache_evictions": 0.0}, True),
        ("modeled", {"preemptions": 1.0}, False),
        ("modeled", {"preemptions": 0.0, "prefix_cache_evictions": 3.0}, False),
        ("measured", {"preemptions": 0.0}, False),
    ],
)
def test_a_cell_is_not_modeled_where_a_model_has_nothing_overflow(
    source: str, metrics: dict[str, float], ample: bool
) -> None:
    run: Any = Counted(source, metrics)
    assert is_ample([run]) is ample


def test_only_modeled_offloading_lacks_the_time_of_its_submission() -> None:
    runs: list[Any] = [
        Counted("modeled", {"offload_stored_bytes": 4.0}),
        Counted("measured", {"offload_stored_bytes": 4.0}),
        Counted("modeled", {"offload_stored_bytes": 0.0, "offload_idle_s": 0.0}),
        Counted("modeled", {}),
    ]
    assert [lacks_submission(run) for run in runs] == [True, False, False, False]
