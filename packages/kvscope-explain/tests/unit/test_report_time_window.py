"""The page's view of a run over time adds up to the tables, whole and in each bin."""

from copy import copy
from pathlib import Path

import numpy as np
import pytest

from kvscope.judge.records import Records, read_records
from kvscope.report.load import load
from kvscope_explain import time_window
from kvscope_explain.time_window import MEANS, REQUEST_FIELDS, SUMS, windows_of
from tests.unit.report_fixture import Fake, write_study

FAKES = [
    Fake({"cache.blocks": 16, "overflow": "recompute"}, "recompute"),
    Fake({"cache.blocks": 4}, status=None),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("results"), FAKES)


@pytest.fixture
def repeat(results: Path) -> Records:
    (run,) = load(["fake"], results).complete
    return read_records(run.directory).of_repeat(0)


def hits_of(repeat: Records) -> float:
    return float(repeat.batch["hit_tokens"].astype(float).sum())


@pytest.mark.parametrize("most", [1, 7, time_window.MOST_BINS])
def test_bins_add_up_to_the_tables(
    results: Path, repeat: Records, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(time_window, "MOST_BINS", most)
    (found,) = windows_of(load(["fake"], results))
    steps, bins = repeat.steps, found["bins"]
    count = min(most, len(steps))
    assert {len(values) for values in bins.values()} == {count}
    assert sum(bins["passes"]) == len(steps)
    assert sum(bins["seconds"]) == pytest.approx(steps["duration_s"].sum(), abs=1e-3)
    for name, column in SUMS.items():
        due = hits_of(repeat) if name == "hits" else steps[column].sum()
        assert sum(bins[name]) == due
    for name, column in MEANS.items():
        due = (steps[column] * steps["duration_s"]).sum()
        assert sum(bins[name]) == pytest.approx(due, abs=1e-3)
    assert max(bins["peak"]) == steps["kv_blocks_used"].max()
    assert found["blocks"] == steps["kv_blocks_total"].iloc[0]
    for place in range(count):  # each pass is in the bin in which it began
        within = steps["start_s"].between(
            place * found["bin_s"], (place + 1) * found["bin_s"], "left"
        )
        assert bins["passes"][place] == within.sum()


def test_the_length_of_all_bins_is_that_of_the_run(results: Path, repeat: Records) -> None:
    (found,) = windows_of(load(["fake"], results))
    end_s = (repeat.steps["start_s"] + repeat.steps["duration_s"]).max()
    due = max(end_s, repeat.requests["finished_s"].max())
    assert found["bin_s"] * len(found["bins"]["passes"]) == pytest.approx(due)


def test_requests_are_those_of_the_table(results: Path, repeat: Records) -> None:
    (found,) = windows_of(load(["fake"], results))
    requests, rows = found["requests"], repeat.requests.set_index("request_id")
    assert {*requests["id"]} == {*rows.index}
    assert found["left_out"] == 0
    due = rows.loc[requests["id"]]
    for name, column in REQUEST_FIELDS.items():
        if column in due:
            np.testing.assert_allclose(
                np.array(requests[name], float), due[column].astype(float), atol=1e-6
            )


def test_what_each_request_cost_adds_up_to_the_tables(results: Path, repeat: Records) -> None:
    (found,) = windows_of(load(["fake"], results))
    requests, rows = found["requests"], repeat.requests.set_index("request_id")
    assert sum(requests["recomputed"]) == repeat.steps["recomputed_tokens"].sum() > 0
    assert sum(requests["preemptions"]) == repeat.steps["preempted_requests"].sum() > 0
    first = repeat.batch.merge(repeat.steps, on="step").groupby("request_id")["start_s"].min()
    for name, arrival, queued in zip(
        requests["id"], requests["arrival"], requests["queued"], strict=True
    ):
        assert arrival + queued == pytest.approx(rows.loc[name, "first_scheduled_s"], abs=1e-5)
        assert 0 <= queued <= first[name] - arrival + 1e-5


def test_a_request_without_a_pass_queues_to_its_end_and_one_of_an_unknown_first_pass_unknown(
    results: Path, repeat: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = load(["fake"], results)
    (run,) = study.complete
    never, unknown = repeat.requests["request_id"].iloc[:2]
    lost = repeat.requests["request_id"].isin([never, unknown])
    changed, first = copy(repeat), repeat.requests["first_scheduled_s"]
    changed.requests = repeat.requests.assign(first_scheduled_s=first.mask(lost))
    changed.batch = repeat.batch[repeat.batch["request_id"] != never]
    monkeypatch.setattr(Records, "of_repeat", lambda *_: changed)
    told = time_window.over_time(run)["requests"]
    row = repeat.requests.set_index("request_id").loc[never]
    queued = dict(zip(told["id"], told["queued"], strict=True))
    assert queued[never] == pytest.approx(row["finished_s"] - row["arrival_s"], abs=1e-5)
    assert queued[unknown] is None


def test_of_very_many_requests_the_last_are_there(
    results: Path, repeat: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_window, "MOST_REQUESTS", 3)
    (found,) = windows_of(load(["fake"], results))
    finished = sorted(repeat.requests["finished_s"])
    assert found["left_out"] == len(finished) - 3
    assert found["requests"]["finished"] == pytest.approx(finished[-3:], abs=1e-6)
