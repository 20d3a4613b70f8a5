"""The records of a run of real vLLM are true, and equal every time."""

import pandas as pd
import pytest

from kvscope.report.check_run import check_run
from kvscope.tables import HOST_TABLES, OF_PREFIX_CACHE, check_file
from kvscope.tables.stalls import shape_classes

from .conftest import AMPLE, SCARCE, Runner, kvscope

pytestmark = pytest.mark.engine

CASES = [
    pytest.param((AMPLE,), id="ample"),
    pytest.param((SCARCE,), id="scarce"),
    pytest.param((SCARCE, "batching=chunked", "batching.chunk_tokens=48"), id="chunked"),
    pytest.param((SCARCE, "model=tiny-gqa"), id="gqa"),
    pytest.param((SCARCE, "model=tiny-opt"), id="opt"),
]
every_case = pytest.mark.parametrize("case", CASES)


def outputs(run: Runner, *case: str) -> dict[str, str]:
    """Hash of the output tokens by request, which must not differ between repeats."""
    hashes = run(*case).records.requests.groupby("request_id")["output_sha256"]
    assert (hashes.nunique() == 1).all()
    return {str(name): digest for name, digest in hashes.first().items()}


@every_case
def test_tokens_are_conserved_and_files_are_as_recorded(run: Runner, case):
    assert check_run(run(*case).directory) == []


@every_case
def test_every_table_has_its_schema(run: Runner, case):
    made = run(*case)
    names = {name.removesuffix(".parquet") for name in made.facts["files"] if ".parquet" in name}
    written = [table for table in HOST_TABLES if table not in OF_PREFIX_CACHE]
    assert names == {table.name for table in written}
    assert not any(check_file(table, made.directory / table.file) for table in written)


@every_case
def test_steps_are_the_sums_of_their_batches(run: Runner, case):
    records = run(*case).records
    steps = records.steps.set_index(["repeat", "step"])
    batch = records.batch.groupby(["repeat", "step"])
    for column in ("scheduled_tokens", "sampled_tokens"):
        pd.testing.assert_series_equal(
            batch[column].sum(), steps[column], check_dtype=False, check_index_type=False
        )
    assert (batch.size() == steps["requests"]).all()
    assert (steps["prefill_tokens"] + steps["decode_tokens"] == steps["scheduled_tokens"]).all()


@every_case
def test_the_cache_is_never_used_beyond_its_size(run: Runner, case):
    made = run(*case)
    steps, size = made.records.steps, made.facts["engine"]["block_size"]
    assert (steps["kv_blocks_used"] <= steps["kv_blocks_total"]).all()
    assert (steps["kv_tokens_used"] <= steps["kv_blocks_used"] * size).all()
    # A request wastes less than one block.
    resident = steps["requests"] + steps["waiting_requests"]
    assert (steps["kv_tokens_used"] > (steps["kv_blocks_used"] - resident) * size).all()


@every_case
def test_time_runs_forward(run: Runner, case):
    made = run(*case)
    for _, steps in made.records.steps.groupby("repeat"):
        ends = steps["start_s"] + steps["duration_s"]
        assert (steps["start_s"].to_numpy()[1:] >= ends.to_numpy()[:-1]).all()
        assert (steps["schedule_s"] + steps["forward_s"] <= steps["duration_s"]).all()
    requests = made.records.requests
    assert (requests["arrival_s"] <= requests["first_scheduled_s"]).all()
    assert (requests["first_scheduled_s"] < requests["first_token_s"]).all()
    assert (requests["first_token_s"] <= requests["finished_s"]).all()


@every_case
def test_layers_lie_inside_their_forward_pass(run: Runner, case):
    made = run(*case)
    layers = made.table("layers").merge(
        made.records.steps[["repeat", "step", "start_s", "duration_s"]],
        on=["repeat", "step"],
        suffixes=("", "_step"),
    )
    assert len(layers) == len(made.records.steps) * made.facts["engine"]["layers"]
    ends = layers["start_s"] + layers["duration_s"]
    assert (layers["start_s"] >= layers["start_s_step"]).all()
    assert (ends <= layers["start_s_step"] + layers["duration_s_step"]).all()


@every_case
def test_warm_up_met_every_class_that_is_measured(run: Runner, case):
    made = run(*case)
    assert made.facts["warmup"]["uncovered_classes"] == []
    assert made.facts["warmup"]["classes"] == shape_classes(made.records.steps).nunique()


def test_its_times_were_measured(run: Runner):
    made = run(AMPLE)
    assert made.facts["time_source"] == "measured"
    assert set(made.records.steps["time_source"]) == {"measured"}


def test_only_a_scarce_cache_preempts(run: Runner):
    assert run(AMPLE).records.preemptions.empty
    events = run(SCARCE).records.preemptions["event"].value_counts()
    assert events["preempt"] == events["resume"] > 0


def test_preemption_and_chunking_change_no_token(run: Runner):
    ample = outputs(run, AMPLE)
    assert outputs(run, SCARCE) == ample
    assert outputs(run, SCARCE, "batching=chunked", "batching.chunk_tokens=48") == ample


def test_another_process_gives_the_same_tokens(run: Runner, tmp_path):
    again = run(AMPLE, "repeats=1")  # another experiment, hence another process
    assert again.records.requests.set_index("request_id")["output_sha256"].to_dict() == outputs(
        run, AMPLE
    )


def test_chunked_passes_keep_to_their_budget(run: Runner):
    steps = run(SCARCE, "batching=chunked", "batching.chunk_tokens=48").records.steps
    assert steps["scheduled_tokens"].max() == 48


def test_unchunked_prompts_are_computed_whole(run: Runner):
    batch = run(SCARCE).records.batch
    first = batch[(batch["phase"] == "prefill") & ~batch["resumed"]]
    assert (first["sampled_tokens"] == 1).all()


def test_requests_wait_for_their_arrival(run: Runner):
    made = run(AMPLE, "workload.arrival=poisson", "workload.rate_per_s=40", "repeats=1")
    requests = made.records.requests
    assert requests["arrival_s"].is_monotonic_increasing
    assert requests["arrival_s"].iloc[-1] > 0
    assert (requests["first_scheduled_s"] >= requests["arrival_s"]).all()


def test_a_finished_run_is_kept_until_forced(run: Runner):
    made = run(AMPLE)
    file = str(made.directory / "experiment.yaml")
    before = (made.directory / "run.json").stat().st_mtime_ns
    done = kvscope("run", file, "--out", str(made.directory))
    assert done.returncode == 0
    assert "finished before" in done.stderr
    assert (made.directory / "run.json").stat().st_mtime_ns == before
