"""The oracles of modeled times hold of modeled runs, and of none with other times."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from test_modeled import SMALL

import kvscope_model.oracles as modeled
from kvscope.judge.oracles.run_tables import RunTables
from kvscope.judge.oracles.workload import workload_differs
from kvscope.judge.records import Records, read_records
from kvscope.tables.oracle import NONE
from kvscope.tables.verdict import HELD, VIOLATED
from kvscope_kernels.collect.flushes import Flush, read_flushes
from tests.engine.conftest import directory_of
from tests.engine.forged_runs import Forgery, everything, found, moved, scaled, with_fact
from tests.warm import Warm

pytestmark = [pytest.mark.engine, pytest.mark.slow]

PAGEABLE = ("overflow.host_memory=pageable", "overflow.copies=coalesced", "batching=chunked")
LATER = ("workload.arrival=poisson", "workload.rate_per_s=20")
CASES = {
    "swap": ("overflow=swap", *LATER),
    "activation": ("overflow=activation", *PAGEABLE, "batching.chunk_tokens=64"),
    "adaptive": (
        *("overflow=adaptive", "model=opt-13b", "workload=fixed", "workload.num_requests=12"),
        *("workload.prompt_tokens=200", "workload.output_tokens=60", "cache.blocks=120"),
    ),
}


@pytest.fixture(scope="module")
def runs(warm: Warm) -> dict[str, Records]:
    small = (*SMALL, "workload.max_tokens=192")
    words = {name: [*small, *case] for name, case in CASES.items()}
    words["adaptive"] = ["device=modeled", *CASES["adaptive"]]
    words["traced"] = [*small, "overflow=swap", "tracing=full", "model=tiny-gqa"]
    return {name: read_records(directory_of(warm, case, "held")) for name, case in words.items()}


@pytest.mark.parametrize("name", CASES)
def test_modeled_runs_take_the_times_of_their_model(name: str, runs: dict[str, Records]) -> None:
    run = runs[name]
    assert found(run, VIOLATED) == set()
    assert "modeled_time_wrong" in found(run, HELD)
    assert len(run.preemptions)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("factor", [1.2, 0.999])
def test_all_times_by_a_factor_are_not_those_of_the_model(
    name: str, factor: float, runs: dict[str, Records]
) -> None:
    assert "modeled_time_wrong" in found(everything(factor)(runs[name]), VIOLATED)


@pytest.mark.parametrize(
    ("name", "forge", "oracle"),
    [
        ("swap", scaled("steps", 1.001, "duration_s", "forward_s"), "modeled_time_wrong"),
        ("swap", scaled("transfers", 0.5, "copy_s"), "modeled_time_wrong"),
        ("swap", scaled("transfers", 1.01, "end_s"), "modeled_time_wrong"),
        ("activation", scaled("transfers", 0.3, "copy_s"), "modeled_time_wrong"),
        ("activation", scaled("transfers", 1.1, "rebuild_s"), "modeled_time_wrong"),
        ("adaptive", scaled("preemptions", 3.0, "predicted_s"), "prediction_wrong"),
    ],
)
def test_one_kind_of_time_is_not_that_of_the_model(
    name: str, forge: Forgery, oracle: str, runs: dict[str, Records]
) -> None:
    assert oracle in found(forge(runs[name]), VIOLATED)


def test_victims_that_adaptive_chose_to_recompute_were_not_refused(
    runs: dict[str, Records],
) -> None:
    rows = runs["adaptive"].preemptions
    assert set(rows["policy"]) == {"recompute"}
    forged = runs["adaptive"].variant(preemptions=rows.assign(refused=rows["event"] == "preempt"))
    assert "prediction_wrong" in found(forged, VIOLATED)


def test_a_pause_between_two_passes_is_not_of_the_model(runs: dict[str, Records]) -> None:
    run = runs["swap"]
    later = (run.steps["step"] > 5) * 1e-4
    steps = run.steps.assign(start_s=run.steps["start_s"] + later)
    assert "modeled_time_wrong" in found(run.variant(steps=steps), VIOLATED)


@pytest.mark.parametrize(
    ("name", "forge", "oracle"),
    [
        ("swap", moved("steps", "schedule_s", 1e-3), "modeled_time_wrong"),
        ("swap", moved("preemptions", "time_s", -9e-7, "preempt"), "modeled_time_wrong"),
    ],
)
def test_scheduling_takes_no_modeled_time(
    name: str, forge: Forgery, oracle: str, runs: dict[str, Records]
) -> None:
    assert oracle in found(forge(runs[name]), VIOLATED)


@pytest.mark.parametrize(
    ("place", "value", "oracle"),
    [
        ("warmup.classes", 20, "facts_differ"),
        ("warmup.copies", {"save": {"count": 3, "fastest_bytes_per_s": 1e9}}, "facts_differ"),
        ("repeats.until", 0.05, "settings_differ"),
        ("repeats.reached", True, "settings_differ"),
    ],
)
def test_facts_of_warm_up_and_repeats_follow_from_the_settings(
    place: str, value: Any, oracle: str, runs: dict[str, Records]
) -> None:
    assert oracle in found(with_fact(runs["swap"], place, lambda _: value), VIOLATED)


def test_the_first_modeled_repeat_begins_with_the_clock(runs: dict[str, Records]) -> None:
    run = runs["swap"]
    (repeat,) = run.facts["clock"]["repeats"]
    later = run.facts["clock"] | {"repeats": [repeat | {"start_ns": 10**9}]}
    assert "modeled_time_wrong" in found(run.variant(facts=run.facts | {"clock": later}), VIOLATED)


def test_modeled_requests_have_the_tokens_of_a_model(runs: dict[str, Records]) -> None:
    run = runs["swap"]
    requests = run.requests.assign(output_sha256="0" * 64)
    assert "modeled_output_wrong" in found(run.variant(requests=requests), VIOLATED)


@pytest.mark.parametrize(
    ("column", "change"),
    [
        ("arrival_s", lambda values: values * (1 + 1e-9)),
        ("output_tokens", lambda values: values + 1),
        ("prompt_token_ids", lambda values: [list(value)[::-1] for value in values]),
        ("request_id", lambda values: values[::-1].tolist()),
    ],
)
def test_requests_are_those_of_the_settings_and_the_seed(
    column: str, change: Callable[[pd.Series], Any], runs: dict[str, Records]
) -> None:
    run = runs["swap"]
    assert workload_differs(RunTables(run)) == NONE
    forged = run.variant(workload=run.workload.assign(**{column: change(run.workload[column])}))
    assert workload_differs(RunTables(forged))


def test_all_layers_of_a_traced_modeled_pass_are_timed(runs: dict[str, Records]) -> None:
    run = runs["traced"]
    assert found(run, VIOLATED) == set()
    half = run.variant(layers=run.layers[run.layers["layer"] % 2 == 0])
    assert {"modeled_time_wrong", "modeled_kernel_wrong"} <= found(half, VIOLATED)


def test_modeled_kernels_begin_where_the_model_has_them(
    runs: dict[str, Records], monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(path: Path) -> Iterator[Flush]:
        for flush in read_flushes(path):
            yield replace(flush, origin_ticks=flush.origin_ticks + 600)

    monkeypatch.setattr(modeled, "read_flushes", late)
    assert "modeled_kernel_wrong" in found(runs["traced"], VIOLATED)
