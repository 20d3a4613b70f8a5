"""The artifact's kernel traces become a run, and the oracles find exactly what they lost."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_traces import BLOCK_SIZE, LAYERS, PROMPTS, STEPS, Artifact

from kvscope import tables
from kvscope.base.errors import BadInput
from kvscope.base.files import read_json
from kvscope.cli import main as cli
from kvscope.collect.importer import import_run
from kvscope.metrics.experiment import analyse
from kvscope.report.check_run import check_run
from kvscope.tables.runfile import write_run

KIND = "unboxkv-trace"


@pytest.fixture
def lossy(tmp_path: Path) -> Artifact:
    return Artifact(PROMPTS, "lossy").serve()


def events(run: Path) -> Any:
    return tables.read(tables.KV_EVENTS, run / "kv_events.parquet")


def violated(run: Path) -> dict[str, int]:
    oracles = read_json(run / "collect.json")["kv_events"]["oracles"]
    return {name: found["violations"] for name, found in oracles.items() if found["violations"]}


def lost_by_the_rule(context: int) -> int:
    """Blocks whose V slot, warp * 20 + block, is beyond the row's 80."""
    blocks = context // BLOCK_SIZE + 1
    return sum(block % 4 * 20 + block >= 80 for block in range(blocks))


def test_exactly_the_lost_rows_of_a_trace_are_found(lossy: Artifact, tmp_path: Path) -> None:
    lost = LAYERS * sum(lost_by_the_rule(893 + step) for step in range(STEPS - 1))
    expected = LAYERS * sum((n + step) // 16 + 1 for n in PROMPTS for step in range(STEPS - 1))
    tokens = LAYERS * (sum(PROMPTS) + (STEPS - 1) * len(PROMPTS))
    run = tmp_path / "run"
    assert import_run(KIND, lossy.files(tmp_path), run) == (
        f"{tokens:,} writes (K and V each), {2 * expected - lost:,} reads: {expected:,} K, "
        f"{expected - lost:,} V; V reads missing: {lost:,} of {expected:,}, all of request 3"
    )
    assert violated(run) == {"v_reads_missing": lost}
    assert [c.split(", ")[:2] for c in check_run(run)] == [
        [f"{run}: v_reads_missing", f"{lost} (repeat 0"]
    ]
    counts = events(run).groupby("kind").size().to_dict()
    assert counts == {
        "k_write": tokens,
        "v_write": tokens,
        "k_read": expected,
        "v_read": expected - lost,
    }


def test_the_published_trace_s_numbers(tmp_path: Path) -> None:
    """32 layers, 5 passes, 4 requests of these prompts: as counted in the published files."""
    files = Artifact([16, 343, 16, 893], "lossy", layers=32, steps=5).serve().files(tmp_path)
    assert import_run(KIND, files, tmp_path / "run") == (
        "41,088 writes (K and V each), 19,392 reads: 10,528 K, 8,864 V; "
        "V reads missing: 1,664 of 10,528, all of request 3"
    )
    assert violated(tmp_path / "run") == {"v_reads_missing": 1664}


def test_a_trace_that_lost_nothing_violates_nothing(tmp_path: Path) -> None:
    files = Artifact(PROMPTS).serve().files(tmp_path)
    summary = import_run(KIND, files, tmp_path / "run")
    assert summary is not None
    assert summary.endswith("no read is missing")
    assert violated(tmp_path / "run") == {}
    assert check_run(tmp_path / "run") == []


def test_blocks_positions_and_offsets_are_those_of_the_engine(
    lossy: Artifact, tmp_path: Path
) -> None:
    import_run(KIND, lossy.files(tmp_path), tmp_path / "run")
    result = events(tmp_path / "run")
    for row in result.drop_duplicates(["request_id", "block_position", "block"]).itertuples():
        assert lossy.tables[int(row.request_id)][row.block_position] == row.block
    writes = result[(result["kind"] == "v_write") & (result["layer"] == 1)]
    per_request = writes.groupby("request_id", sort=False)
    for request, own in per_request:
        tokens = own["block_position"] * BLOCK_SIZE + own["offset_tokens"]
        assert tokens.tolist() == list(range(PROMPTS[int(request)] + STEPS - 1))
    assert result["kv_head"].isna().all()
    assert result["sm"].isna().all()


def test_times_take_the_gpu_at_its_fastest_and_faults_say_so(
    lossy: Artifact, tmp_path: Path
) -> None:
    import_run(KIND, lossy.files(tmp_path), tmp_path / "run")
    result = events(tmp_path / "run")
    reads = result[result["kind"] == "k_read"]
    took = (reads["end_ns"] - reads["start_ns"]).to_numpy()
    assert np.abs(took - 12 * 210 / 1.41).max() <= 1  # start and end are rounded to ns
    second = result[(result["step"] == 1) & (result["layer"] == 0) & (result["kind"] == "k_write")]
    assert second["start_ns"].iloc[0] == pytest.approx(26_000_000, abs=150)
    facts = read_json(tmp_path / "run" / "run.json")
    assert facts["imported_from"]["kind"] == KIND
    said = " ".join(facts["faults"])
    for words in (
        "unit of time",
        "V reads missing",
        "no start",
        "kv_head",
        "dropped",
        "request ids",
    ):
        assert words in said


def test_either_order_gives_the_same_run(lossy: Artifact, tmp_path: Path) -> None:
    reads, writes = lossy.files(tmp_path)
    import_run(KIND, [reads, writes], tmp_path / "one")
    import_run(KIND, [writes, reads], tmp_path / "other")
    one, other = (read_json(tmp_path / n / "run.json") for n in ("one", "other"))
    assert one["experiment_id"] == other["experiment_id"]
    assert events(tmp_path / "one").equals(events(tmp_path / "other"))


def test_reads_alone_tell_what_they_lost(lossy: Artifact, tmp_path: Path) -> None:
    reads, _ = lossy.files(tmp_path)
    summary = import_run(KIND, [reads], tmp_path / "run")
    assert summary is not None
    assert summary.startswith("0 writes")
    assert set(violated(tmp_path / "run")) == {"v_reads_missing"}
    said = " ".join(read_json(tmp_path / "run" / "run.json")["faults"])
    assert "no prefill pass" in said
    assert "block size is taken to be 16" in said


def test_decode_writes_fill_in_where_reads_end(lossy: Artifact, tmp_path: Path) -> None:
    lossy.writes = [record for record in lossy.writes if record["step"] > 1]
    import_run(KIND, lossy.files(tmp_path), tmp_path / "run")
    assert set(violated(tmp_path / "run")) == {"v_reads_missing"}


def test_a_trace_without_reads_violates_nothing(lossy: Artifact, tmp_path: Path) -> None:
    _, writes = lossy.files(tmp_path)
    import_run(KIND, [writes], tmp_path / "run")
    assert violated(tmp_path / "run") == {}


def test_a_cut_file_is_a_shorter_trace(lossy: Artifact, tmp_path: Path) -> None:
    lossy.reads, lossy.writes = lossy.reads[:3], lossy.writes[:3]
    import_run(KIND, lossy.files(tmp_path), tmp_path / "run")
    assert set(violated(tmp_path / "run")) == {"v_reads_missing"}


def test_a_block_of_somebody_else_is_noticed(tmp_path: Path) -> None:
    artifact = Artifact([40, 40]).serve()
    record = artifact.reads[0]["k_read_pattern_record"]
    record[0][2] = record[1][2]
    import_run(KIND, artifact.files(tmp_path), tmp_path / "run")
    assert violated(tmp_path / "run") == {"block_not_in_table": 1}


def test_import_and_analyse_name_the_missing_events(
    lossy: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reads, writes = map(str, lossy.files(tmp_path))
    run = tmp_path / "run"
    assert cli.main(["import", KIND, reads, writes, "--out", str(run)]) == 0
    assert "V reads missing" in capsys.readouterr().out
    metrics = analyse(run, run)
    assert metrics["reasons"].unique().tolist() == ["v_reads_missing"]
    assert metrics["time_source"].unique().tolist() == ["published"]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("one,two\n", "line 1 is not JSON"),
        ('{"layer_id": 0}\n', "line 1 is no record of the artifact's kernel traces"),
        ("", "no records"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, wrong: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=f"other.json: {wrong}"):
        import_run(KIND, [path], tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists()


def test_what_fits_no_layout_or_has_no_lengths_is_refused(tmp_path: Path) -> None:
    odd = Artifact([20]).serve()
    odd.writes[0]["kv_write_pattern_record"][3][1] += 2
    with pytest.raises(BadInput, match="fit no cache"):
        import_run(KIND, odd.files(tmp_path), tmp_path / "run")
    twice = Artifact([20, 30]).serve()
    twice.writes[-1]["seq_lens"] = [5, 1]
    with pytest.raises(BadInput, match="2 prefill passes"):
        import_run(KIND, twice.files(tmp_path), tmp_path / "run")
    headless = Artifact([20]).serve()
    headless.writes = headless.writes[LAYERS:]
    with pytest.raises(BadInput, match="neither a prefill pass nor reads"):
        import_run(KIND, headless.files(tmp_path)[1:], tmp_path / "run")
    short = Artifact([20]).serve()
    short.writes[0]["kv_write_pattern_record"].pop()
    with pytest.raises(BadInput, match="not as the artifact has them"):
        import_run(KIND, short.files(tmp_path), tmp_path / "run")


def test_a_measured_run_is_not_overwritten(lossy: Artifact, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write_run(run, {"experiment_id": "mine", "status": "complete", "files": {}})
    with pytest.raises(BadInput, match="holds a run that was measured"):
        import_run(KIND, lossy.files(tmp_path), run)
