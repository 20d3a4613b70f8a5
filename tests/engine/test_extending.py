"""docs/EXTENDING.md, followed to the letter, and the package of tests/toys in a real run."""

import base64
import json
import os
import re
import shlex
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kvscope.base import plugins
from kvscope.base.errors import BadInput
from kvscope.judge.oracles.registry import judge_tables
from kvscope.judge.records import Records, read_records
from kvscope.judge.validity import find_reasons
from kvscope.plan import registry
from kvscope.tables import kv_kinds
from kvscope.tables.added import added_tables
from kvscope.tables.oracle import Oracle
from kvscope.tables.verdict import HELD, NOT_APPLICABLE, VIOLATED
from tests.warm import Warm

from .conftest import ROOT, kvscope
from .forged_runs import found

pytestmark = pytest.mark.engine
TEXT = (ROOT / "docs" / "EXTENDING.md").read_text(encoding="utf-8")


def block(after: str, language: str) -> str:
    """The first code block of a language after some words of the document."""
    rest = TEXT.partition(after)[2]
    found = re.search(rf"```{language}\n(.*?)```", rest, re.S)
    assert found, f"no {language} block after {after!r}"
    return found.group(1)


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Path:
    """The example's directory after its commands; its package is kept out of this environment."""
    directory = tmp_path_factory.mktemp("long-swap")
    (directory / "pyproject.toml").write_text(block("`pyproject.toml`:", "toml"))
    (directory / "long_swap.py").write_text(block("`long_swap.py`:", "python"))
    installed = directory / "installed"
    commands = block("Install it and run it:", "bash").replace("\\\n", " ").splitlines()
    for command in commands:
        words = shlex.split(command)
        if words[0] == "pip":
            words = [sys.executable, "-m", "pip", "-q", *words[1:], "--target", str(installed)]
        elif words[0] == "kvscope":
            not_profiled = ["profiler=none"] if words[1] == "run" else []
            words = [sys.executable, "-m", "kvscope.cli", words[1], *not_profiled, *words[2:]]
        environment = os.environ | {"PYTHONPATH": f"{installed}:{warm.variables['PYTHONPATH']}"}
        done = subprocess.run(words, capture_output=True, text=True, cwd=directory, env=environment)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return directory


def test_long_victims_are_swapped_and_short_ones_recomputed(example: Path):
    events = pd.read_parquet(example / "mine" / "preemptions.parquet")
    victims = events[events["event"] == "preempt"]
    assert set(victims["policy"]) == {"swap", "recompute"}
    assert ((victims["tokens"] >= 150) == (victims["policy"] == "swap")).all()


def test_the_example_is_thirty_lines_at_most():
    assert len(block("`long_swap.py`:", "python").splitlines()) <= 30


TOYS = ROOT / "tests" / "toys"
WORDS = (
    *("device=toy", "workload=pairs", "overflow=stash", "overflow.host_blocks=64"),
    *("cache.block_size=32", "cache.blocks=9", "profiler=none", "repeats=2", "warmup=1"),
    *("engine.max_model_len=192", "engine.max_num_batched_tokens=256", "engine.max_num_seqs=8"),
)


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Path:
    """A run on a device, of a workload, under a policy and with an action of another package."""
    return run_with_toys(WORDS, tmp_path_factory.mktemp("toys"), warm)


def run_with_toys(words: tuple[str, ...], directory: Path, warm: Warm) -> Path:
    done = kvscope("run", *words, "--out", str(directory), env=with_toys(warm))
    assert done.returncode == 0, done.stderr
    return directory


def with_toys(warm: Warm) -> dict[str, str]:
    return {"PYTHONPATH": f"{TOYS}:{warm.variables['PYTHONPATH']}"}


def test_all_times_are_by_the_clock_of_the_device(toys: Path):
    """Each reading of it takes a microsecond, and nothing else does."""
    steps, layers = (pd.read_parquet(toys / f"{name}.parquet") for name in ("steps", "layers"))
    assert set(steps["time_source"]) == {"modeled"}
    times = pd.concat([steps["start_s"], steps["duration_s"], layers["start_s"]]) * 1e6
    assert (times - times.round()).abs().max() < 1e-3
    assert layers["duration_s"].round(9).eq(1e-6).all()
    requests = pd.read_parquet(toys / "requests.parquet")
    assert requests["finished_s"].max() < 0.1


def test_the_victim_is_that_of_the_policy_and_its_action_is_recorded(toys: Path):
    events = pd.read_parquet(toys / "preemptions.parquet")
    victims = events[events["event"] == "preempt"]
    assert victims["request_id"].astype(int).mod(2).eq(1).all(), "a short request holds few tokens"
    first = victims.groupby(["repeat", "request_id"]).cumcount() == 0
    assert set(victims["policy"]) == {"stash", "recompute"}
    assert ((victims["policy"] == "stash") == first).all()
    copies = pd.read_parquet(toys / "transfers.parquet").query("direction == 'out'")
    of = ["repeat", "step", "request_id"]
    copied = pd.MultiIndex.from_frame(victims[of]).isin(pd.MultiIndex.from_frame(copies[of]))
    assert (copied == first).all()


def test_the_run_keeps_all_oracles_and_names_the_package(toys: Path, warm: Warm):
    done = kvscope("check", str(toys), env=with_toys(warm))
    assert done.returncode == 0, done.stdout + done.stderr
    versions = json.loads((toys / "run.json").read_text())["versions"]
    assert versions["overflow"] == "toys 0.1, toy_overflow:Stash"
    assert versions["device"] == "toys 0.1, toy_device:Toy"
    assert versions["toy_requests.parquet"] == "toys 0.1, toy_table:ADDED"


SLICED = (
    *("device=dry", "batching=sliced", "batching.slice_tokens=20", "workload=uniform"),
    *("workload.min_tokens=60", "workload.max_tokens=120", "workload.num_requests=6"),
    *("cache.block_size=16", "cache.blocks=16", "engine.max_model_len=128"),
    "engine.max_num_batched_tokens=96",
)


@pytest.fixture(scope="module")
def sliced(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Path:
    """A run whose policy cuts prompts before passes are full."""
    return run_with_toys(SLICED, tmp_path_factory.mktemp("sliced"), warm)


def test_a_policy_may_cut_prompts_before_a_pass_is_full(sliced: Path, warm: Warm):
    batch, steps = (pd.read_parquet(sliced / f"{name}.parquet") for name in ("batch", "steps"))
    assert batch["scheduled_tokens"].max() == 20
    parts = steps[steps["step"].isin(batch.loc[batch["sampled_tokens"] == 0, "step"])]
    assert parts["scheduled_tokens"].min() < 96
    done = kvscope("check", str(sliced), env=with_toys(warm))
    assert done.returncode == 0, done.stdout + done.stderr


PICKY = (
    *("device=dry", "overflow=picky", "overflow.host_blocks=12", "workload=uniform"),
    *("workload.min_tokens=60", "workload.max_tokens=120", "workload.num_requests=6"),
    *("cache.block_size=16", "cache.blocks=16", "engine.max_model_len=128"),
    "engine.max_num_batched_tokens=256",
)


def test_a_policy_may_bring_its_own_connector(tmp_path: Path, warm: Warm):
    """The connector takes a victim if as many of the free blocks remain as it takes."""
    run = run_with_toys(PICKY, tmp_path / "run", warm)
    done = kvscope("check", str(run), env=with_toys(warm))
    assert done.returncode == 0, done.stdout + done.stderr
    copies = pd.read_parquet(run / "transfers.parquet").query("direction == 'out'")
    assert not copies.empty
    assert copies["blocks"].max() <= 6
    events = pd.read_parquet(run / "preemptions.parquet").query("event == 'preempt'")
    assert set(events["policy"]) == {"swap", "recompute"}


SINKS = (
    *("model=toy-sinks", "device=dry", "workload=uniform", "workload.min_tokens=60"),
    *("workload.max_tokens=400", "workload.num_requests=8", "cache.block_size=32"),
    *("cache.blocks=40", "engine.max_model_len=512", "engine.max_num_batched_tokens=512"),
)


@pytest.fixture(scope="module")
def sinks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a model whose layers keep a state that vLLM knows only through the toys.

    The warm process has loaded vLLM's plug-ins before, so this is another one.
    """
    directory = tmp_path_factory.mktemp("sinks")
    done = kvscope("run", *SINKS, "--out", str(directory), env={"PYTHONPATH": str(TOYS)})
    assert done.returncode == 0, done.stderr
    return directory


def test_a_kind_of_kv_group_may_be_brought(sinks: Path, warm: Warm):
    """In decode a request holds the blocks of the window and of its sinks, and no others."""
    done = kvscope("check", str(sinks), env=with_toys(warm))
    assert done.returncode == 0, done.stdout + done.stderr
    groups, steps = (pd.read_parquet(sinks / f"{name}.parquet") for name in ("kv_groups", "steps"))
    assert groups["kind"].tolist() == ["ToySinks", "FullAttention"]
    assert steps["preempted_requests"].any()
    decoding = steps[steps["phase"] == "decode"]
    of_sinks, of_all = np.array([*decoding["group_blocks_used"]]).T
    assert (of_sinks <= decoding["requests"] * (1 + 128 // 32 + 1)).all()
    assert (of_sinks < of_all).any()


def test_a_kind_of_kv_group_stands_on_the_page(sinks: Path, warm: Warm, tmp_path: Path):
    for command in (("analyse", str(sinks)), ("report", str(sinks), "--out", str(tmp_path))):
        done = kvscope(*command, env=with_toys(warm))
        assert done.returncode == 0, done.stderr
    assert "sinks and a window" in (tmp_path / "report.html").read_text("utf-8")


def test_the_blocks_of_a_request_are_judged_by_the_kind_of_their_group(
    sinks: Path, installed: Records, monkeypatch: pytest.MonkeyPatch
):
    kind = kv_kinds.kind_of("ToySinks")
    assert found(read_records(sinks), VIOLATED) == set()
    monkeypatch.setattr(type(kind), "held_blocks", kv_kinds.Window.held_blocks)
    assert "differs_from_replay" in found(read_records(sinks), VIOLATED)


def test_a_section_of_another_package_stands_on_the_page(sliced: Path, warm: Warm, tmp_path: Path):
    """Between those of other orders, with its style, its script and the data for it."""
    for command in (("analyse", str(sliced)), ("report", str(sliced), "--out", str(tmp_path))):
        done = kvscope(*command, env=with_toys(warm))
        assert done.returncode == 0, done.stderr
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    count = len(pd.read_parquet(sliced / "steps.parquet"))
    section = page.partition('<section id="toy_passes">')[2].partition("</section>")[0]
    assert "<h2>Passes of each run</h2>" in section
    assert f": {count} passes</li>" in section
    packed = re.search(r'id="toy-counts">(.+)</script>', section)
    assert packed
    counts = json.loads(zlib.decompress(base64.b64decode(packed[1])))
    assert list(counts.values()) == [count]
    ids = re.findall(r'<section id="(\w+)">', page)
    assert ids[-4:] == ["window", "toy_passes", "requests", "reproduce"]
    assert '<a href="#toy_passes">Passes of each run</a>' in page
    for name in ("toy_section.css", "toy_section.js"):
        assert page.count((TOYS / name).read_text(encoding="utf-8")) == 1


@pytest.mark.parametrize(
    ("declared", "value"),
    [("cuts_prompts", "when_full"), ("cuts_prompts", "never"), ("mixes_phases", False)],
)
def test_a_run_is_checked_against_the_declarations_of_its_policy(
    sliced: Path, installed: Records, monkeypatch: pytest.MonkeyPatch, declared: str, value: Any
):
    run = read_records(sliced)
    assert found(run, VIOLATED) == set()
    monkeypatch.setattr(registry.load("batching", "sliced"), declared, value)
    assert found(run, VIOLATED) == {"batching_wrong"}


@pytest.fixture
def installed(toys: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Records]:
    """The run, read where its package is installed."""
    caches = (
        *(plugins.names, plugins.find, added_tables, registry.find_registered),
        *(kv_kinds.registered, kv_kinds.by_vllm_name),
    )
    monkeypatch.syspath_prepend(str(TOYS))
    for cached in caches:
        cached.cache_clear()
    yield read_records(toys)
    for cached in caches:
        cached.cache_clear()


def test_a_table_of_another_package_is_recorded_and_judged(installed: Records):
    rows = installed.added("toy_requests")
    assert len(rows) == len(installed.batch)
    assert {*installed.of_repeat(1).added("toy_requests")["repeat"]} == {1}
    assert rows.groupby(["repeat", "step"])["computed_share"].sum().round(9).eq(1).all()
    assert found(installed, VIOLATED) == set()
    assert "added_differ" in found(installed, HELD)


@pytest.mark.parametrize("column", ["computed_tokens", "computed_share"])
def test_derived_columns_are_compared_with_their_derivation(installed: Records, column: str):
    rows = installed.added("toy_requests").copy()
    rows[column] += rows.index == 3
    row: Any = rows.loc[3].to_dict()
    verdicts = judge_tables(installed.variant(added={"toy_requests": rows}))
    (words,) = [verdict.first for verdict in verdicts if verdict.name == "added_differ"]
    assert words.startswith(f"toy_requests.{column} is {row[column]}")
    assert f"step {row['step']}, request_id {row['request_id']}" in words


def test_an_oracle_of_another_package_judges_runs(
    installed: Records, monkeypatch: pytest.MonkeyPatch
):
    assert "priority_too_high" in found(installed, HELD)
    rows = installed.added("toy_requests").copy()
    rows.loc[[3, 5], "priority"] = 10_000
    forged = installed.variant(added={"toy_requests": rows})
    (verdict,) = [one for one in judge_tables(forged) if one.name == "priority_too_high"]
    assert (verdict.state, verdict.violations) == (VIOLATED, 2)
    assert verdict.first == f"request {rows['request_id'][3]} in row 3"
    assert verdict.sentence == "No request has a priority of 10,000 or more."
    assert find_reasons(forged, [verdict])[0].name == "priority_too_high"
    none = installed.variant()
    monkeypatch.setattr(type(none), "added_names", [])
    assert "priority_too_high" in found(none, NOT_APPLICABLE)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            lambda run: 1 / 0,
            "(toys 0.1, toy_table:PRIORITIES) raised ZeroDivisionError",
        ),
        (lambda run: 3, "returned 3, expected Violations or None"),
        ("other_name", "is a function named 'other_name'; give both one name"),
        ("", "has no docstring"),
    ],
)
def test_a_faulty_oracle_of_another_package_is_named(
    installed: Records, monkeypatch: pytest.MonkeyPatch, wrong: Any, words: str
):
    def function(run: Any) -> Any:
        """The oracle's rule."""
        return wrong(run)

    function.__name__ = "priority_too_high" if callable(wrong) else wrong or "priority_too_high"
    function.__doc__ = function.__doc__ if wrong else ""
    monkeypatch.setattr(sys.modules["toy_table"], "PRIORITIES", Oracle(function))
    with pytest.raises(BadInput, match=re.escape(words)):
        judge_tables(installed)


def test_a_row_of_it_that_is_lost_or_repeated_is_noticed(installed: Records):
    rows = installed.added("toy_requests")
    lost = installed.variant(added={"toy_requests": rows.drop(index=3)})
    assert "added_differ" in found(lost, VIOLATED)
    again = pd.concat([rows, rows.iloc[[3]]], ignore_index=True)
    repeated = installed.variant(added={"toy_requests": again})
    assert "rows_wrong" in found(repeated, VIOLATED)


def test_its_metric_is_computed_and_without_the_package_the_run_is_as_sound(toys: Path, warm: Warm):
    done = kvscope("analyse", str(toys), env=with_toys(warm))
    assert done.returncode == 0, done.stderr
    metrics = pd.read_parquet(toys / "metrics.parquet").set_index("metric")
    assert 0 < float(metrics["value"]["toy_largest_share"]) <= 1
    assert "toy_requests" not in added_tables()
    with pytest.raises(BadInput, match="no table 'toy_requests' of an installed package"):
        read_records(toys).added("toy_requests")
