"""Oracles of a run's host tables: they hold of what an engine does, and of nothing forged."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kvscope.base.errors import BadInput
from kvscope.judge.oracles.registry import judge_tables
from kvscope.judge.oracles.run_tables import RunTables
from kvscope.judge.oracles.times import given_up_wrong
from kvscope.judge.records import Records, read_records
from kvscope.tables.oracle import NONE
from kvscope.tables.verdict import HELD, NOT_APPLICABLE, VIOLATED
from tests.run_records import facts_of

from .report_fixture import Fake, write_experiment

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

KINDS = {
    "ample": Fake({"kind": "ample"}),
    "recompute": Fake({"kind": "recompute"}, "recompute"),
    "swap": Fake({"kind": "swap"}, "swap, prefill first"),
    "small pool": Fake({"kind": "pool"}, "swap, a small pool"),
    "mixed": Fake({"kind": "mixed"}, "mixed", repeats=2),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Records]:
    results = tmp_path_factory.mktemp("results")
    return {name: read_records(write_experiment(fake, results)) for name, fake in KINDS.items()}


def violated(run: Records) -> dict[str, str]:
    return {v.name: v.first for v in judge_tables(run) if v.state == VIOLATED}


@pytest.mark.parametrize("name", KINDS)
def test_every_oracle_holds_for_the_records_of_an_engine(
    name: str, runs: dict[str, Records]
) -> None:
    assert violated(runs[name]) == {}


def test_an_oracle_that_has_nothing_to_look_at_says_so(runs: dict[str, Records]) -> None:
    states = {v.name: v.state for v in judge_tables(runs["ample"])}
    assert states["copy_outside_pass"] == NOT_APPLICABLE
    states = {v.name: v.state for v in judge_tables(runs["small pool"])}
    assert states["copy_outside_pass"] == HELD


# ------------------------------------------------------------------------ every cell matters

# A cell that may have another value, and no metric and no figure of importance changes by it.
FREE = {
    ("workload", "prompt_token_ids"),  # hashed as a whole by run.json
    ("layers", "duration_s"),  # a shorter duration leaves a gap, which is allowed
}
NAMES = ("workload", "requests", "steps", "batch", "preemptions", "transfers", "layers")


def frame_of(run: Records, name: str) -> pd.DataFrame:
    frame: pd.DataFrame = getattr(run, name)
    return frame


def forged(value: Any, random: np.random.Generator) -> Any:
    """Another value of the same kind: a little off, far off, below zero, or none."""
    if isinstance(value, bool | np.bool_):
        return not value
    if isinstance(value, int | np.integer):
        return int(random.choice([value + 1, 2 * value + 3, -1 - value]))
    if isinstance(value, float):
        return float(random.choice([value / 2 + 1e-3, 10 * value + 1, -value - 1, np.nan]))
    return f"{value}x"


@pytest.mark.parametrize("table", NAMES)
def test_any_other_value_in_any_cell_violates_an_oracle(
    table: str, runs: dict[str, Records]
) -> None:
    run, random = runs["small pool"], np.random.default_rng(7)
    frame = frame_of(run, table)
    unnoticed = []
    for column in frame.columns:
        if (table, column) in FREE:
            continue
        known = np.flatnonzero(frame[column].notna())
        if not known.size:  # a column of another overflow policy
            continue
        for row in random.choice(known, 2):
            values = frame[column].astype(object)
            values.iloc[row] = forged(values.iloc[row], random)
            other = frame.assign(**{column: values.infer_objects()})
            try:
                noticed = bool(violated(run.variant(**{table: other})))
            except BadInput:  # an action of a package that is not installed
                noticed = True
            if not noticed:
                unnoticed.append((column, row, values.iloc[row]))
    assert unnoticed == []


# Table, column, an impossible value, and the end of the sentence that rows_wrong says.
IMPOSSIBLE = [
    ("batch", "scheduled_tokens", 0, "batch: scheduled_tokens is less than 1"),
    ("batch", "phase", "mixed", "batch: phase is none of prefill, decode"),
    ("steps", "requests", -1, "steps: requests is negative"),
    ("transfers", "direction", "up", "transfers: direction is none of out, in"),
    ("workload", "after", ["no such"], "workload: follows a request that is not in it"),
]


@pytest.mark.parametrize(("table", "column", "value", "words"), IMPOSSIBLE)
def test_a_value_that_a_column_cannot_have_is_named(
    table: str, column: str, value: object, words: str, runs: dict[str, Records]
) -> None:
    run = runs["small pool"]
    frame = frame_of(run, table)
    values = frame[column].astype(object)
    values.iloc[0] = value
    other = run.variant(**{table: frame.assign(**{column: values.infer_objects()})})
    result = violated(other)
    assert list(result) == ["rows_wrong"]
    assert result["rows_wrong"].endswith(words)


@pytest.mark.parametrize("table", NAMES)
def test_a_row_lost_or_repeated_violates_an_oracle(table: str, runs: dict[str, Records]) -> None:
    run = runs["small pool"]
    frame = frame_of(run, table)
    for row in (0, len(frame) // 2, len(frame) - 1):
        lost = frame.drop(index=frame.index[row])
        assert violated(run.variant(**{table: lost})), f"row {row} lost"
        twice = pd.concat([frame, frame.iloc[[row]]], ignore_index=True)
        assert violated(run.variant(**{table: twice})), f"row {row} twice"


# ------------------------------------------------------- tables that agree with one another

# Changes that a faulty recorder or a careful forger makes in all tables alike.
SINCE_START = {
    "requests": ["first_scheduled_s", "first_token_s", "finished_s"],
    "steps": ["start_s"],
    "preemptions": ["time_s"],
    "transfers": ["start_s", "end_s"],
    "layers": ["start_s"],
}
LENGTHS = {
    "steps": ["duration_s", "schedule_s", "forward_s"],
    "preemptions": ["wait_s"],
    "transfers": ["copy_s"],
    "layers": ["duration_s"],
}
Forgery = Callable[[Records], Records]


def in_all(change: Callable[[pd.DataFrame, str], pd.DataFrame], *but: str) -> Forgery:
    """Every table with a repeat, changed."""

    def forge(run: Records) -> Records:
        for name in NAMES:
            if name not in ("workload", *but):
                run = run.variant(**{name: change(frame_of(run, name), name)})
        return run

    return forge


def at(change: Callable[[pd.Series], pd.Series], *kinds: dict[str, list[str]]) -> Forgery:
    """Every column of times of these kinds, changed."""

    def forge(frame: pd.DataFrame, name: str) -> pd.DataFrame:
        columns = [column for kind in kinds for column in kind.get(name, [])]
        return frame.assign(**{column: change(frame[column]) for column in columns})

    return in_all(forge)


def of(table: str, **columns: Callable[[pd.DataFrame], Any]) -> Forgery:
    return lambda run: run.variant(**{table: frame_of(run, table).assign(**columns)})


def of_engine(table: str, column: str, more: int) -> Forgery:
    """A size of the engine, in its table and in run.json."""

    def forge(run: Records) -> Records:
        frame, made = frame_of(run, table), run.facts["engine"]
        facts = {**run.facts, "engine": {**made, column: made[column] + more}}
        forged = frame.assign(**{column: frame[column] + more})
        return run.variant(facts=facts, **{table: forged})

    return forge


def copied(frame: pd.DataFrame, _: str) -> pd.DataFrame:
    first = frame[frame["repeat"] == 0]
    return pd.concat([first.assign(repeat=number) for number in range(3)], ignore_index=True)


def without_layers(change: Forgery) -> Forgery:
    return lambda run: change(run).variant(layers=run.layers.iloc[:0])


FORGED: dict[str, tuple[Forgery, str]] = {
    "all times ten times as long": (at(lambda s: 10 * s, SINCE_START, LENGTHS), "repeats_differ"),
    "all times a tenth": (at(lambda s: s / 10, SINCE_START, LENGTHS), "repeats_differ"),
    "all times ten seconds late": (at(lambda s: s + 10, SINCE_START), "repeats_differ"),
    "the last repeat lost": (in_all(lambda f, _: f[f["repeat"] < 2]), "repeats_differ"),
    "a repeat too many": (
        in_all(
            lambda f, _: pd.concat([f, f[f["repeat"] == 0].assign(repeat=3)], ignore_index=True)
        ),
        "repeats_differ",
    ),
    "every repeat the first": (in_all(copied), "repeats_differ"),
    "a repeat fewer than asked for": (
        in_all(lambda f, _: f[f["repeat"] < 2]),
        "settings_differ",
    ),
    "a larger cache": (of_engine("steps", "kv_blocks_total", 1), "settings_differ"),
    "a larger pool": (of_engine("steps", "host_blocks_total", 1), "settings_differ"),
    "arrivals that nobody asked for": (
        lambda run: of("requests", arrival_s=lambda f: f["arrival_s"] + 1e-3)(
            of("workload", arrival_s=lambda f: f["arrival_s"] + 1e-3)(run)
        ),
        "settings_differ",
    ),
    "passes of half their length": (
        without_layers(
            of(
                "steps",
                duration_s=lambda f: f["duration_s"] / 2,
                forward_s=lambda f: f["forward_s"] / 3,
            )
        ),
        "passes_apart",
    ),
    "passes that end with their forward part": (
        of("steps", duration_s=lambda f: f["schedule_s"] + f["forward_s"]),
        "passes_overlap",
    ),
    "passes that begin when they are scheduled": (
        of("steps", schedule_s=lambda f: 0 * f["schedule_s"]),
        "passes_overlap",
    ),
    "no layers": (lambda run: run.variant(layers=run.layers.iloc[:0]), "layers_outside_pass"),
    "layers of a third of their length": (
        of("layers", duration_s=lambda f: f["duration_s"] / 3),
        "layers_outside_pass",
    ),
    "no copy refused": (of("preemptions", refused=lambda f: False), "differs_from_replay"),
    "requests of no asking given up": (
        of("requests", aborted=lambda f: f["request_id"] == "3"),
        "settings_differ",
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_tables_that_are_forged_alike_contradict_the_clock_or_what_was_asked_for(
    name: str, runs: dict[str, Records]
) -> None:
    run, (forge, oracle) = runs["small pool"], FORGED[name]
    run = asked(run, "workload", **ALL_AT_ONCE)
    assert violated(run) == {}
    assert oracle in violated(forge(run))


ALL_AT_ONCE = {"arrival": "all_at_once"}


def test_where_there_is_no_pool_no_copy_is_refused(runs: dict[str, Records]) -> None:
    forge = of("preemptions", refused=lambda f: True)
    assert "differs_from_replay" in violated(forge(runs["recompute"]))


def test_an_oversubscribed_cache_has_a_part_of_the_blocks_that_requests_need(
    runs: dict[str, Records],
) -> None:
    run = runs["recompute"]
    tokens = run.workload["prompt_tokens"] + run.workload["output_tokens"]
    size, blocks = (run.settings["cache"][key] for key in ("block_size", "blocks"))
    needed = int((-(-tokens // size)).sum())

    def of_ratio(ratio: float, workload: pd.DataFrame) -> dict[str, str]:
        cache = {"block_size": size, "blocks": blocks, "oversubscription": ratio}
        return violated(run.variant(settings=run.settings | {"cache": cache}, workload=workload))

    assert "settings_differ" not in of_ratio(needed / (blocks + 0.5), run.workload)
    first = of_ratio(needed / (blocks + 1.5), run.workload)["settings_differ"]
    assert first == f"cache.blocks is {blocks}, the settings have {blocks + 1}"
    together = run.workload.assign(conversation="one")  # a turn holds the turns before it
    longest = -(-int(tokens.max()) // size)
    assert "settings_differ" not in of_ratio(longest / (blocks + 0.5), together)


def test_settings_in_gib_ask_for_as_many_blocks_as_fit(runs: dict[str, Records]) -> None:
    run = runs["swap"]
    engine = run.facts["engine"]
    cache, overflow = run.settings["cache"], run.settings["overflow"]
    blocks, block = cache["blocks"], engine["block_bytes"] / 2**30

    def of_gib(gib: float, host_gib: float) -> Records:
        asked = {"cache": cache | {"gib": gib}, "overflow": overflow | {"host_gib": host_gib}}
        del asked["cache"]["blocks"], asked["overflow"]["host_blocks"]
        return run.variant(settings=run.settings | asked)

    host_gib = (engine["host_blocks_total"] + 0.5) * block
    assert violated(of_gib((blocks + 0.5) * block, host_gib)) == {}
    first = violated(of_gib((blocks + 1) * block, host_gib))["settings_differ"]
    assert first == f"kv_blocks_total is {blocks}, the settings have {blocks + 1}"


def test_a_rule_for_repeats_allows_min_and_more(runs: dict[str, Records]) -> None:
    run = runs["swap"]  # three repeats
    for least, allowed in ((2, True), (3, True), (4, False)):
        rule = {"min": least, "until": 0.05, "budget_s": 60}
        told = {"repeats": {**rule, "measured": 3}}
        made = run.variant(settings=run.settings | {"repeats": rule}, facts=run.facts | told)
        assert (violated(made) == {}) == allowed
    fixed = {"min": 3, "until": None, "budget_s": None}
    group = {"id": "0" * 12, "design": "groups", "members": []}
    of_group = {"campaign": group | {"reference": run.facts["experiment_id"]}}
    for repeats, campaign, allowed in ((3, {}, True), (1, {}, False), (1, of_group, True)):
        kept = {"repeats": fixed | {"min": repeats, "measured": 3}, **campaign}
        made = run.variant(settings=run.settings | {"repeats": repeats}, facts=run.facts | kept)
        assert (violated(made) == {}) == allowed
    rule = {"min": 2, "until": 0.05, "budget_s": 60}
    wider = {"repeats": {**rule, "until": 0.5, "measured": 3}}
    made = run.variant(settings=run.settings | {"repeats": rule}, facts=run.facts | wider)
    assert "repeats.until" in violated(made)["settings_differ"]


def test_a_request_that_never_ran_is_judged_like_any_other(runs: dict[str, Records]) -> None:
    run = runs["ample"]
    batch = run.batch
    result = violated(run.variant(batch=batch[batch["request_id"] != "4"]))
    assert "differs_from_replay" in result


# Passes of 1 s each, one after the other; requests have 2.5 s from their arrival.
@pytest.mark.parametrize(
    ("arrival_s", "given_up_s", "right"),
    [
        (0.0, 3.001, True),
        (0.0, 4.001, False),  # a pass too late
        (0.0, 2.001, False),  # its time was not over
        (0.0, 2.501, False),  # while a pass was under way
        (1.2, 4.001, True),
        (1.2, 5.001, False),
        (1.2, 3.701, False),
    ],
)
def test_a_request_is_given_up_at_the_first_end_of_a_pass_after_its_time(
    arrival_s: float, given_up_s: float, right: bool, runs: dict[str, Records]
) -> None:
    steps = pd.DataFrame({"repeat": 0, "step": range(8), "start_s": np.arange(8) + 0.01})
    steps["duration_s"] = 0.99
    one = {"repeat": 0, "request_id": "a", "aborted": True}
    requests = pd.DataFrame([one | {"arrival_s": arrival_s, "finished_s": given_up_s}])
    asked_for = {"workload": {"timeout_s": 2.5}}
    run = runs["ample"].variant(
        facts=facts_of(), steps=steps, requests=requests, settings=asked_for
    )
    assert (given_up_wrong(RunTables(run)) == NONE) == right


# ------------------------------------------------------------------------ times of copies


def with_copies(run: Records, wrong: slice, direction: str, factor: float) -> Records:
    """The run with the times of some of its copies out, or back, multiplied."""
    frame, lost = run.transfers.copy(), run.preemptions
    rows = frame.index[frame["direction"] == direction][wrong]
    assert len(rows)
    frame.loc[rows, "copy_s"] *= factor
    # Their costs have these times in them.
    return run.variant(transfers=frame, preemptions=lost.assign(cost_s=np.nan))


@pytest.mark.parametrize("direction", ["out", "in"])
def test_copies_take_the_time_that_their_passes_saw(
    direction: str, runs: dict[str, Records]
) -> None:
    for factor in (0.1, 0.5, 2):
        result = violated(with_copies(runs["swap"], slice(None), direction, factor))
        assert set(result) == {"copy_time_wrong"}


def test_one_copy_may_be_interrupted_before_its_stopwatch_starts(runs: dict[str, Records]) -> None:
    assert violated(with_copies(runs["swap"], slice(1), "out", 0.1)) == {}
    assert set(violated(with_copies(runs["swap"], slice(1), "out", 2))) == {"copy_time_wrong"}


# ------------------------------------------------------------------------ requested repeats


def asked(run: Records, section: str, **settings: Any) -> Records:
    """The run of an experiment with other settings."""
    return run.variant(
        settings=run.settings | {section: {**run.settings.get(section, {}), **settings}}
    )


@pytest.mark.parametrize(
    ("section", "settings"),
    [
        ("cache", {"block_size": 8}),
        ("cache", {"blocks": 17}),
        ("model", {"layers": 3}),
        ("overflow", {"host_blocks": 199}),
    ],
)
def test_an_engine_is_the_one_that_was_asked_for(
    section: str, settings: dict[str, Any], runs: dict[str, Records]
) -> None:
    assert violated(runs["swap"]) == {}
    assert set(violated(asked(runs["swap"], section, **settings))) == {"settings_differ"}


@pytest.mark.parametrize(
    ("section", "key", "column"),
    [
        ("engine", "max_num_batched_tokens", "scheduled_tokens"),
        ("batching", "chunk_tokens", "scheduled_tokens"),
        ("engine", "max_num_seqs", "requests"),
    ],
)
def test_a_pass_keeps_to_its_limits(
    section: str, key: str, column: str, runs: dict[str, Records]
) -> None:
    run = runs["recompute"]
    most = int(run.steps[column].max())
    assert violated(asked(run, section, **{key: most})) == {}
    assert set(violated(asked(run, section, **{key: most - 1}))) == {"limit_exceeded"}


def test_without_settings_nothing_is_said_of_them(runs: dict[str, Records]) -> None:
    states = {v.name: v.state for v in judge_tables(runs["swap"].variant(settings={}))}
    assert states["settings_differ"] == states["limit_exceeded"] == NOT_APPLICABLE
