"""The figures of the offload engine: each draws marks, by the records of runs."""

from collections.abc import Iterator
from typing import Any

import pytest

from kvscope.report.figures.registry import drawings
from kvscope.report.load import load
from kvscope.report.render import print_figure, svg
from kvscope_offload.figures.published import CLAIMS
from tests.unit.marks import marks_of
from tests.unit.report_fixture import Fake, write_study

pytestmark = pytest.mark.slow

FIGURES = ("offload_pipeline", "offload_published", "offload_shares")


def facts(share: float) -> dict[str, Any]:
    """The part of run.json about the offload engine: a prediction, and a pass of two
    mini-batches."""
    jobs = [("link", "load", 0.0), ("device", "compute", 0.1), ("back", "store", 0.2)]
    intervals = [
        {
            "lane": lane, "job": job, "layer": 0, "minibatch": n,
            "start_s": start_s + 0.1 * n, "end_s": start_s + 0.1 * n + 0.1,
        }
        for lane, job, start_s in jobs
        for n in range(2)
    ]  # fmt: skip
    engine = {
        "requests": 8,
        "split": {"activation": share, "token": 0.0},
        "cost": {"rebuild": {"slope_s": 1e-6}, "recompute": {"slope_s": 6e-6}},
        "closed_form_step_s": 0.01,
        "simulated_step_s": 0.011,
        "best_activation_share": 0.6,
        "predicted": [[x / 4, max(0.02 - 0.01 * x / 4, 0.02 * x / 4)] for x in range(5)],
        "timeline": {"measured": intervals, "simulated": intervals},
    }
    return {"offload": engine}


# Not all settings are there: nothing is held against them.
SECTIONS = {"workload": {"name": "fixed", "prompt_tokens": 64}, "tracing": None}


def offload_study() -> Iterator[Fake]:
    """Three shares of activations, and policies on a GPU of which gains are published."""
    for share in (0.0, 0.5, 1.0):
        yield Fake(
            {"device.policy": "hybrid", "device.share": share},
            engine=facts(share),
            sections=SECTIONS,
            stall=False,
        )
    policies = {
        "zero_inference": 0.4, "flexgen": 0.5, "kv_only": 1.0, "act_only": 0.8, "token": 0.7,
        "hybrid": 1.2,
    }  # fmt: skip
    for policy, speed in policies.items():
        on_gpu = {"device.policy": policy, "device.hardware": "rtx-4090"}
        yield Fake(on_gpu, engine=facts(0.5), sections=SECTIONS, stall=False, speed=speed)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    return load(["offload"], write_study(results, [*offload_study()], "offload"))


@pytest.fixture(scope="module")
def drawn(study):
    return drawings(study)


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_draws_marks_and_is_printed(drawn, name):
    assert marks_of(svg(drawn[name]))
    assert all(len(frame) for view in drawn[name].views for frame in view.data.values())
    printed = print_figure(drawn[name])
    assert printed.pdf.startswith(b"%PDF")
    assert printed.png.startswith(b"\x89PNG")


def test_runs_of_another_engine_have_none_of_them(tmp_path):
    other = load(
        ["other"], write_study(tmp_path, [Fake({"seed": seed}) for seed in (1, 2)], "other")
    )
    assert not {*FIGURES} & drawings(other).keys()


def test_the_shares_are_drawn_on_the_line_that_was_predicted(drawn):
    view = drawn["offload_shares"].views[0]
    assert list(view.data["points0"]["share"]) == [0.0, 0.5, 1.0]
    assert len(view.data["line0"]) == 5
    assert list(view.data["best0"]["share"]) == [0.6]


def test_the_pipeline_has_every_job_of_each_experiment_measured_and_simulated(drawn):
    drawing = drawn["offload_pipeline"]
    assert [view.choice[1] for view in drawing.views] == ["measured", "simulated"] * 2
    assert [len(view.data) for view in drawing.views] == [3, 3, 6, 6]
    for view in drawing.views:
        assert {len(frame) for frame in view.data.values()} == {6}
        assert "compute busy 50" in str(view.chart)


def test_the_pipeline_is_per_token_of_the_batch(drawn):
    """Eight requests: a mini-batch of 100 ms is 12.5 ms a token, whatever else is in the plot."""
    for view in drawn["offload_pipeline"].views:
        for frame in view.data.values():
            assert list(frame["end_ms"] - frame["start_ms"]) == pytest.approx([12.5] * 6)
            assert list(frame["ms"]) == pytest.approx([100] * 6)
        assert "batch of 8" in str(view.chart)


def test_gains_stand_beside_the_published_ones_and_are_judged(study, drawn):
    view = drawn["offload_published"].views[0]
    runs = {run.settings["device"].get("policy"): run for run in study.runs[3:]}

    def gain(policy, base):
        values = [runs[name].number("throughput_tokens_per_s").value for name in (policy, base)]
        return values[0] / values[1]

    result = dict(zip(view.data["points"]["claim"], view.data["points"]["gain"], strict=True))
    assert result["hybrid over FlexGen"] == gain("hybrid", "flexgen")
    assert result["hybrid over act_only"] == gain("hybrid", "act_only")
    assert result["slowdown by token, share 0.2"] == gain("kv_only", "token")
    assert result["hybrid over zero_inference"] == gain("hybrid", "zero_inference")
    published = dict(zip(view.data["means"]["claim"], view.data["means"]["published"], strict=True))
    assert published["hybrid over FlexGen"] == 2.19
    assert "Hybrid over zero_inference: not published, modeled " in view.note


def test_78_percent_faster_is_read_as_less_time_and_as_a_higher_rate(drawn):
    """The model's 24 h² operations over 4 h², the most at one rate, allow both."""
    view = drawn["offload_published"].views[0]
    means = view.data["means"].set_index("claim")
    readings = means.loc[["rebuild, as 78 % less time", "rebuild, as 1.78 times the rate"]]
    assert list(readings["published"]) == pytest.approx([1 / 0.22, 1.78])
    assert list(readings["mean"]) == pytest.approx([6, 6])
    assert (
        "published 4.55, modeled 6, 1.32 times it. Possible: the product that rebuilds then "
        "reaches 76\N{NO-BREAK SPACE}% of the rate of a whole layer's products."
    ) in view.note
    assert "published 1.78, modeled 6, 3.37 times it. Possible" in view.note


UNKNOWN = "their prompt lengths are not published"


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        ([1.0, 2.0], f"Cannot be told: {UNKNOWN}."),
        ([1.35], f"Cannot be told: {UNKNOWN}."),
        ([1.36, 2.0], f"Differs: no condition that is modeled gives it; {UNKNOWN}."),
        ([1.0, 1.34], f"Differs: no condition that is modeled gives it; {UNKNOWN}."),
    ],
)
def test_a_range_that_was_chosen_here_confirms_nothing(gains, said):
    (claim,) = (claim for claim in CLAIMS if claim.words == "hybrid over act_only")
    assert claim.verdict(1.35, {("m", n): gain for n, gain in enumerate(gains)}) == said


def test_a_gain_that_operation_counts_do_not_allow_differs():
    (claim,) = (claim for claim in CLAIMS if claim.words == "rebuild, as 78 % less time")
    assert claim.verdict(4.55, {("m", 1): 4.0}).startswith("Differs")


def test_no_ratio_of_bytes_is_made_of_runs_that_do_not_tell_activations_apart(drawn):
    claims = drawn["offload_published"].views[0].data["means"]["claim"]
    assert not claims.str.startswith("bytes").any()
