"""A study on device=cuda without a GPU: from Snakemake to the page, killed on the way."""

import os
import signal
import subprocess
import time

import pandas as pd
import pytest

from kvscope_rehearsal.node import Gpus
from rehearsals import Rehearsal
from tests.workflow.test_snakemake import repeats_so_far

pytestmark = [pytest.mark.workflow, pytest.mark.representative]

NAME = "rehearsal"  # of this package's config
PATIENCE_S = 300.0


@pytest.fixture(scope="module")
def study(tmp_path_factory, require, forked) -> Rehearsal:
    """The study, measured by a workflow that was killed, and by another that continued it."""
    rehearsal = Rehearsal(tmp_path_factory.mktemp("rehearsal"), require)
    process = subprocess.Popen(
        rehearsal.command(study=NAME),
        cwd=rehearsal.path,
        env=rehearsal.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + PATIENCE_S
    while not (before := repeats_so_far(rehearsal)):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = rehearsal.snakemake(study=NAME)
    assert done.returncode == 0, done.stdout
    for name, repeats in before.items():
        run = rehearsal.facts(rehearsal.path / "results" / "experiments" / name)
        assert run["clock"]["repeats"][: len(repeats)] == repeats, "a repeat was measured again"
    return rehearsal


def test_every_run_is_valid(study):
    assert len(study.experiments) == 3
    study.assert_valid()
    assert metrics(study)["valid"].all()


def metrics(study: Rehearsal) -> pd.DataFrame:
    return pd.read_parquet(study.page(NAME).parent / "metrics.parquet")


def test_no_number_of_a_rehearsed_run_counts_as_measured(study):
    assert set(metrics(study)["time_source"]) == {"rehearsed"}
    page = study.page(NAME).read_text(encoding="utf-8")
    assert "rehearsed, not measured" in page
    refused = study.kvscope("compare", NAME, NAME)
    assert refused.returncode == 2
    assert "rehearsed" in refused.stdout


def test_each_policy_gives_the_same_tokens_whether_it_is_traced_or_not(study):
    recomputed, *swapped = study.experiments
    expected = study.outputs(recomputed)
    assert len(set(expected.values())) == 2
    for run in swapped:
        assert study.outputs(run) == expected


def test_preempted_blocks_go_to_page_locked_memory_and_back_by_the_clock_of_the_gpu(study):
    _, swap, _ = study.experiments
    transfers = study.table(swap, "transfers")
    moved = transfers.groupby("direction")["blocks"].sum()
    assert moved["in"] == moved["out"] > 0
    assert set(transfers["clock"]) == {"device"}
    assert study.facts(swap)["engine"]["host_memory"] == "pinned"


def test_its_kernels_record_each_access(study):
    *_, traced = study.experiments
    events = study.table(traced, "kv_events")
    assert {"k_read", "v_read", "k_write", "v_write"} <= set(events["kind"])
    assert study.facts(traced)["tracing"]["workers"] == Gpus().processors


def test_it_says_which_gpu_was_not_there(study):
    for run in study.experiments:
        facts = study.facts(run)
        assert [gpu["name"] for gpu in facts["hardware"]["gpus"]] == [Gpus().name]
