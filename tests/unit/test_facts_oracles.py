"""Oracles of run.json and of clocks: nothing that other oracles believe can be said otherwise."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
import pytest
from pydantic import ValidationError

from kvscope.base.errors import BadInput
from kvscope.base.time_sources import REHEARSED
from kvscope.collect.importer import content_digest
from kvscope.judge.checklist import FACTS
from kvscope.judge.oracles import facts as facts_oracles
from kvscope.judge.oracles import profiled
from kvscope.judge.oracles.engine_checks import attention_differs
from kvscope.judge.oracles.registry import judge_tables
from kvscope.judge.records import Records, read_records
from kvscope.plan.parts import Conditions, TracingSettings
from kvscope.plan.policy import HostPools, Overflow
from kvscope.tables.copies import copies_of
from kvscope.tables.oracle import judge
from kvscope.tables.runfile import KERNEL_EVENTS, NSYS_EXPORT
from kvscope.tables.runschema import RunRecord
from kvscope.tables.verdict import NOT_APPLICABLE, VIOLATED
from tests.run_records import record_of

from .plugged_in import plug_in
from .report_fixture import Fake, write_experiment

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

Facts = dict[str, Any]
Change = Callable[[Facts], Any]
A_FILE = {"bytes": 1, "sha256": "0" * 64}
TRACED = TracingSettings(name="full", layer_stride=3, step_stride=2).model_dump()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Records:
    """A traced run on the CPU, whose warm-up had the passes of one repeat, with swaps."""
    results = tmp_path_factory.mktemp("results")
    fake = Fake({"kind": "swap"}, "swap, prefill first")
    result = read_records(write_experiment(fake, results))
    settings = copy.deepcopy(result.settings)
    settings["tracing"], settings["profiler"] = TRACED, {"name": "auto"}
    settings["engine"]["attention"] = "instrumented"
    settings["workload"]["arrival"] = "all_at_once"
    facts = copy.deepcopy(result.facts)
    facts["engine"]["reference_checks"] = {"compared": 7, "differing": 0}
    facts["tracing"] = TRACED | {
        "layers": [0, 3],
        "kv_heads": [*range(settings["model"]["kv_heads"])],
    }
    facts["tracing"]["passes"] = int((result.steps["step"] % 2 == 0).sum())
    facts["tracing"]["clock"] = {"name": "tsc", "samples": [{"ticks": 5, "host_ns": 7}]}
    facts["files"][KERNEL_EVENTS] = A_FILE
    return result.variant(facts=facts, settings=settings)


def states(run: Records, state: str) -> dict[str, str]:
    return {verdict.name: verdict.first for verdict in judge_tables(run) if verdict.state == state}


def forged(run: Records, change: Change) -> Records:
    facts = copy.deepcopy(run.facts)
    change(facts)
    return run.variant(facts=facts)


def put(path: str, value: Any) -> Change:
    """A key of run.json, by its dotted name, with another value."""
    *above, last = path.split(".")

    def change(facts: Facts) -> None:
        for name in above:
            facts = facts[name]
        facts[last] = value

    return change


def drop(path: str) -> Change:
    *above, last = path.split(".")

    def change(facts: Facts) -> None:
        for name in above:
            facts = facts[name]
        del facts[last]

    return change


def test_facts_that_follow_from_the_settings_violate_nothing(run: Records) -> None:
    assert states(run, VIOLATED) == {}


@pytest.mark.parametrize(
    "change",
    [
        *(put("time_source", "modeled"), put("engine.times_layers", False)),
        *(put("engine.copies_awaited", False), put("engine.computes", False)),
        *(put("hardware.gpus", [{"name": "H100", "memory_bytes": 1}]), drop("tracing")),
        *(put(f"tracing.{key}", 9) for key in TRACED if key != "name"),
        *(drop(f"tracing.{key}") for key in ("step_stride", "layers", "kv_heads", "passes")),
        *(put("tracing.layers", [0]), put("tracing.kv_heads", [0]), put("tracing.passes", 1)),
        *(put("tracing.name", "sampled"), put("tracing.clock.name", "virtual")),
        lambda facts: facts["files"].pop(KERNEL_EVENTS),
        *(put("profiler.requested", "none"), put("profiler.reason", None)),
        *(
            put("profiler", {"requested": "auto", "used": "nsys"}),
            lambda facts: facts["files"].update({NSYS_EXPORT: A_FILE}),
        ),
        *(put("warmup.passes", 0), put("warmup.classes", 0), drop("warmup.copies")),
        *(put("warmup.uncovered_classes", ["p1-d1-c1"]), drop("warmup.classes")),
        *(drop("load"), drop("engine.leaked_blocks")),
        lambda facts: facts["load"].pop(),
        *(drop("engine.reference_checks"), put("engine.swap_checks.compared", 0)),
        *(put("engine.host_memory", "pageable"), put("workload", {"workload": "sharegpt"})),
    ],
)
def test_run_json_says_what_follows_from_the_settings(
    run: Records, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = pd.DataFrame(columns=["repeat", "step", "start_ns", "end_ns"])
    monkeypatch.setattr(profiled, "forward_passes", lambda path: none)
    assert "facts_differ" in states(forged(run, change), VIOLATED)


@pytest.mark.parametrize("key", ["until", "budget_s"])
def test_a_rule_for_repeats_cannot_be_left_out(run: Records, key: str) -> None:
    rule = {"min": 2, "until": 0.5, "budget_s": 60}
    asked = run.settings | {"repeats": rule}
    made = run.variant(facts=run.facts | {"repeats": rule | {"measured": 3}}, settings=asked)
    assert states(made, VIOLATED) == {}
    assert "settings_differ" in states(forged(made, drop(f"repeats.{key}")), VIOLATED)


@pytest.mark.parametrize("key", ["repeats.min", "repeats.measured", "clock.repeats"])
def test_required_keys_of_run_json_cannot_be_left_out(run: Records, key: str) -> None:
    rule = {"min": 2, "until": 0.5, "budget_s": 60, "measured": 3}
    with pytest.raises(ValidationError, match=key):
        forged(run.variant(facts=run.facts | {"repeats": rule}), drop(key))


def test_a_device_that_is_not_installed_is_named_in_one_sentence(run: Records) -> None:
    elsewhere = run.variant(settings=run.settings | {"device": {"name": "abacus"}})
    with pytest.raises(BadInput, match=r"device.name is 'abacus' but must be one of"):
        judge_tables(elsewhere)


# ------------------------------------------------------------------------ where it is from

IMPORTED = {
    "experiment_id": f"log-{content_digest(['a'], None)}",
    "time_source": "published",
    "status": "complete",
    "imported_from": {"kind": "lines", "files": [{"file": "a.log", "sha256": "a"}]},
    "files": {},
}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package imports files of one kind."""
    monkeypatch.setattr(facts_oracles, "kinds", lambda: ("lines",))


def wrong_origin(facts: Facts) -> bool:
    return VIOLATED in {
        found.state
        for found in judge(FACTS, RunRecord.model_validate(facts))
        if found.name == "origin_wrong"
    }


def test_a_run_is_kvscopes_or_imported(run: Records) -> None:
    assert not wrong_origin(run.facts)
    assert not wrong_origin(IMPORTED)


@pytest.mark.parametrize(
    "change",
    [
        *(put("time_source", "measured"), put("imported_from.kind", "own")),
        *(put("experiment_id", "log-0123456789"), put("imported_from.files", [])),
        *(put("files", {"experiment.yaml": A_FILE}), drop("imported_from")),
        *(put("warmup", {"passes": 1}), put("timings_s", {"total": 1.0})),
    ],
)
def test_an_import_names_its_source(change: Change) -> None:
    facts = copy.deepcopy(IMPORTED)
    change(facts)
    assert wrong_origin(facts)


# ------------------------------------------------------------------------ other clocks


def in_repeats(key: str, change: Callable[[float], float]) -> Change:
    def apply(facts: Facts) -> None:
        for repeat in facts["clock"]["repeats"]:
            repeat[key] = change(repeat[key])

    return apply


@pytest.mark.parametrize(
    "change",
    [
        *(in_repeats("raw_s", lambda s: 2 * s), in_repeats("raw_s", lambda s: s / 2)),
        *(in_repeats("raw_s", lambda s: 1.002 * s), in_repeats("thread_cpu_s", lambda s: 2 * s)),
        *(in_repeats("cpu_s", lambda s: 9 * s), in_repeats("cpu_s", lambda s: s / 2)),
        lambda facts: facts["clock"]["repeats"][1].pop("apart_s"),
        lambda facts: [repeat.pop("cpu_s") for repeat in facts["clock"]["repeats"]],
    ],
)
def test_a_repeat_is_as_long_by_every_clock(run: Records, change: Change) -> None:
    assert "clocks_differ" in states(forged(run, change), VIOLATED)


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_a_loaded_machine_violates_nothing(run: Records, share: float) -> None:
    """Its repeats have less CPU time than they last, and clocks are slewed."""
    loaded = forged(run, in_repeats("cpu_s", lambda s: share * s))
    loaded = forged(loaded, in_repeats("thread_cpu_s", lambda s: share * s))
    assert states(forged(loaded, in_repeats("raw_s", lambda s: 1.0004 * s)), VIOLATED) == {}


def test_a_thread_that_waits_for_a_cpu_may_end_its_repeat_late(run: Records) -> None:
    def late(facts: Facts) -> None:
        for repeat in facts["clock"]["repeats"]:
            for key in ("duration_s", "raw_s"):
                repeat[key] *= 1.5

    assert "repeats_differ" in states(forged(run, late), VIOLATED)

    def waited(facts: Facts) -> None:
        late(facts)
        for entry in facts["load"]:
            entry["waiting_share"] = 0.4

    assert states(forged(run, waited), VIOLATED) == {}


def test_a_run_of_an_older_schema_has_no_other_clocks(run: Records) -> None:
    def older(facts: Facts) -> None:
        facts["schema"] = 1
        for repeat in facts["clock"]["repeats"]:
            for key in ("raw_s", "cpu_s", "thread_cpu_s", "apart_s"):
                del repeat[key]
        del facts["warmup"]["copies"]

    result = forged(run, older)
    assert states(result, VIOLATED) == {}
    assert {"clocks_differ", "copy_rate_wrong"} <= states(result, NOT_APPLICABLE).keys()


def test_a_run_that_calls_itself_older_is_compared_with_its_clocks(run: Records) -> None:
    result = forged(forged(run, put("schema", 1)), in_repeats("raw_s", lambda s: 2 * s))
    assert "clocks_differ" in states(result, VIOLATED)


@pytest.mark.parametrize(
    "change",
    [
        put("timings_s", {"total": 1.0}),
        put("timings_s", {"total": 1e6, "repeats": 1e-3}),
        put("timings_s", {"total": 1e6, "start_engine": 2.0, "warm_up": 3.0}),
        put("timings_s", {"total": 5e3, "repeats": 6e3}),
    ],
)
def test_the_repeats_lie_in_the_time_of_the_run(run: Records, change: Change) -> None:
    assert "timings_differ" in states(forged(run, change), VIOLATED)


# ------------------------------------------------------------------------ copies, the profiler


def test_copies_take_at_least_their_cpu_time(run: Records) -> None:
    cpu_s = run.transfers["copy_s"].groupby(run.transfers["repeat"]).sum()

    def timed(facts: Facts) -> None:
        for repeat in facts["clock"]["repeats"]:
            repeat["copy_cpu_s"] = 0.9 * float(cpu_s[repeat["repeat"]])

    known = forged(run, timed)
    assert states(known, VIOLATED) == {}
    short = run.transfers.assign(copy_s=0.2 * run.transfers["copy_s"])
    assert "copy_cpu_wrong" in states(known.variant(transfers=short), VIOLATED)
    untimed = forged(run, lambda facts: facts["clock"]["repeats"][0].pop("copy_cpu_s"))
    assert "clocks_differ" in states(untimed, VIOLATED)


@pytest.mark.parametrize("direction", ["out", "in"])
@pytest.mark.parametrize(("factor", "caught"), [(0.2, True), (0.4, False), (20.0, False)])
def test_copies_are_not_much_faster_than_in_the_warm_up(
    run: Records, direction: str, factor: float, caught: bool
) -> None:
    frame = run.transfers
    assert copies_of(frame)[direction]["count"] >= 5
    launched = forged(run, put("engine.copies_awaited", False))
    faster = frame["copy_s"].where(frame["direction"] != direction, factor * frame["copy_s"])
    made = launched.variant(transfers=frame.assign(copy_s=faster))
    assert ("copy_rate_wrong" in states(made, VIOLATED)) == caught
    rehearsed = forged(made, put("time_source", REHEARSED))
    assert "copy_rate_wrong" in states(rehearsed, NOT_APPLICABLE)


@pytest.mark.parametrize(
    ("of_pass", "of_all", "caught"),
    [(1.0, 1.0, False), (1.02, 1.0, False), (2.0, 1.0, True), (0.5, 1.0, True), (1.0, 1.1, True)],
)
def test_passes_are_as_long_as_their_ranges(
    run: Records, monkeypatch: pytest.MonkeyPatch, of_pass: float, of_all: float, caught: bool
) -> None:
    steps = run.steps
    begin_s = 1000.0 * steps["repeat"] + steps["start_s"] + steps["schedule_s"]
    ranges = pd.DataFrame({"repeat": steps["repeat"], "step": steps["step"]})
    ranges["start_ns"] = (of_all * begin_s * 1e9).astype("int64")
    ranges["end_ns"] = ranges["start_ns"] + (of_pass * steps["forward_s"] * 1e9).astype("int64")
    monkeypatch.setattr(profiled, "forward_passes", lambda path: ranges)

    def with_export(facts: Facts) -> None:
        facts["files"][NSYS_EXPORT] = A_FILE
        facts["profiler"] |= {"used": "nsys", "reason": None}

    result = states(forged(run, with_export), VIOLATED)
    assert result.keys() == ({"ranges_differ"} if caught else set())


# ------------------------------------------------------------------------ warm-up and engine


@pytest.mark.parametrize(
    "change",
    [
        *(put("warmup.passes", 9), put("warmup.classes", 99)),
        put("engine.swap_checks.compared", 1),
    ],
)
def test_a_warm_up_had_the_passes_of_the_repeats(run: Records, change: Change) -> None:
    assert "facts_differ" in states(forged(run, change), VIOLATED)


@pytest.mark.parametrize("key", ["start_engine", "warm_up", "repeats", "total"])
def test_every_part_of_a_run_is_timed(run: Records, key: str) -> None:
    assert "timings_differ" in states(forged(run, drop(f"timings_s.{key}")), VIOLATED)


@pytest.mark.parametrize("change", [put("faults", ["in microseconds"]), put("reason", "it failed")])
def test_a_complete_run_by_kvscope_has_no_faults(run: Records, change: Change) -> None:
    assert wrong_origin(forged(run, change).facts)


@pytest.mark.parametrize(
    ("error", "allowed", "caught"), [(1e-5, 1e-4, 0), (1e-3, 1e-4, 1), (0.5, 1.0, 1), (-1, 1, 1)]
)
def test_attention_is_as_exact_as_rounding(error: float, allowed: float, caught: int) -> None:
    checks = {"compared": 7, "differing": 0, "largest_error": error, "tolerance": allowed}
    result = attention_differs(record_of(engine={"reference_checks": checks}))
    assert result is not None
    assert result.count == caught


class Thirds(Overflow):
    """A policy of another package: its pool has a third of the cache's blocks."""

    def pool_blocks(self, experiment: Conditions) -> int:
        return experiment.cache_blocks // 3


class Told(Thirds):
    """It says so, too."""

    @classmethod
    def host_pools(
        cls, settings: Mapping[str, Any], block_bytes: HostPools, found: HostPools
    ) -> HostPools | None:
        return HostPools(kv=settings["third"])


def test_a_host_pool_has_the_size_that_its_policy_states(
    run: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    plug_in(monkeypatch, "overflow", {"Thirds": Thirds, "Told": Told})
    facts = copy.deepcopy(run.facts)
    facts["engine"]["host_blocks_total"] = 21
    said = {
        (name, third): states(
            run.variant(
                facts=facts, settings=run.settings | {"overflow": {"name": name, "third": third}}
            ),
            VIOLATED,
        ).get("settings_differ", "")
        for name, third in (("Thirds", 7), ("Told", 21), ("Told", 22), ("recompute", 0))
    }
    wrong = {case for case, words in said.items() if "host_blocks_total is 21" in words}
    assert wrong == {("Told", 22), ("recompute", 0)}


# ------------------------------------------------------------------------ scheduling


@pytest.mark.parametrize("more", [3, 10])
def test_nothing_is_preempted_where_there_is_room(run: Records, more: int) -> None:
    total = run.steps["kv_blocks_total"] + more
    settings = run.settings | {"cache": run.settings["cache"] | {"blocks": int(total.iloc[0])}}
    facts = copy.deepcopy(run.facts)
    facts["engine"]["kv_blocks_total"] = int(total.iloc[0])
    steps = run.steps.assign(kv_blocks_total=total)
    result = run.variant(steps=steps, settings=settings, facts=facts)
    assert "differs_from_replay" in states(result, VIOLATED)


def test_passes_are_filled_as_the_policy_says(
    run: Records, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def under(name: str, **more: int) -> set[str]:
        settings = run_of.settings | {"batching": {"name": name, **more}}
        return {*states(run_of.variant(settings=settings), VIOLATED)}

    fake = Fake({"kind": "chunked"}, "small chunks, swap")
    run_of = read_records(write_experiment(fake, tmp_path_factory.mktemp("chunked")))
    assert "batching_wrong" not in under("chunked", chunk_tokens=48)
    assert "batching_wrong" in under("chunked", chunk_tokens=49)
    assert "batching_wrong" in under("mixed") & under("prefill_first")
    run_of = run
    assert "batching_wrong" not in under("prefill_first") | under("mixed")
