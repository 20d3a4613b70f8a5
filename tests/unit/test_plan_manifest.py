"""The plan on disk: what is written, and when it is written again."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvscope.errors import BadInput
from kvscope.plan import grid, manifest, show
from kvscope.plan.experiment import load
from kvscope.plan.grid import expand

CONFIG = Path(__file__).parents[2] / "config"
STUDY = "title: T\ngrids: [{name: g, product: {seed: [1, 2], batching: [mixed, chunked]}}]\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A copy of the configuration with a study of four experiments, 'four'."""
    copied = Path(shutil.copytree(CONFIG, tmp_path / "config"))
    (copied / "study" / "four.yaml").write_text(STUDY)
    return copied


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


def times(results: Path) -> dict[str, int]:
    """The modification time of every file."""
    return {str(p): p.stat().st_mtime_ns for p in results.rglob("*") if p.is_file()}


def test_every_experiment_is_written_where_its_id_says(config: Path, results: Path) -> None:
    written = manifest.ensure("four", config, results)
    assert len(written["experiments"]) == 4
    for entry in written["experiments"]:
        found = load(results / "experiments" / entry["id"] / "experiment.yaml")
        assert found.id == entry["id"]
        assert found.seed == entry["varied"]["seed"]
    assert written == json.loads((results / "studies" / "four" / "manifest.json").read_text())
    assert written == manifest.read("four", results)


def test_entries_say_what_sets_an_experiment_apart(config: Path, results: Path) -> None:
    written = manifest.ensure("four", config, results)
    assert written["varied_keys"] == ["seed", "batching"]
    assert written["experiments"][1]["label"] == "seed=1, chunked"
    assert written["experiments"][1]["varied"] == {"seed": 1, "batching": "chunked"}


def test_nothing_is_written_again_that_stays_the_same(config: Path, results: Path) -> None:
    manifest.write(expand("four", [], config), results)
    before = times(results)
    manifest.write(expand("four", [], config), results)
    assert times(results) == before


def test_a_comment_changes_no_experiment(config: Path, results: Path) -> None:
    manifest.ensure("four", config, results)
    before = times(results / "experiments")
    path = config / "config.yaml"
    path.write_text("# a comment\n" + path.read_text())
    manifest.ensure("four", config, results)
    assert times(results / "experiments") == before


def test_a_changed_study_writes_only_what_is_new(config: Path, results: Path) -> None:
    manifest.ensure("four", config, results)
    before = times(results / "experiments")
    (config / "study" / "four.yaml").write_text(STUDY.replace("[1, 2]", "[1, 2, 3]"))
    assert len(manifest.ensure("four", config, results)["experiments"]) == 6
    after = times(results / "experiments")
    assert {path: after[path] for path in before} == before
    assert len(after) == 6


def _refuse_to_expand(*arguments: object) -> None:
    raise AssertionError("expanded again")


def test_an_unchanged_configuration_is_not_expanded_again(
    config: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = manifest.ensure("four", config, results)
    (config / "study" / "another.yaml").write_text(STUDY)
    monkeypatch.setattr(grid, "expand", _refuse_to_expand)
    assert manifest.ensure("four", config, results) == written
    (config / "model" / "tiny-llama.yaml").touch()
    assert manifest.ensure("four", config, results) == written
    (config / "config.yaml").write_text("seed: 1\n")
    with pytest.raises(AssertionError, match="expanded again"):
        manifest.ensure("four", config, results)


def test_a_lost_experiment_is_written_again(config: Path, results: Path) -> None:
    entry = manifest.ensure("four", config, results)["experiments"][0]
    path = results / "experiments" / entry["id"] / "experiment.yaml"
    content = path.read_bytes()
    path.unlink()
    manifest.ensure("four", config, results)
    assert path.read_bytes() == content


def test_a_manifest_with_overrides_is_not_taken_for_the_study(config: Path, results: Path) -> None:
    manifest.write(expand("four", ["seed=9"], config), results)
    assert manifest.read("four", results)["overrides"] == ["seed=9"]
    assert len(manifest.ensure("four", config, results)["experiments"]) == 4


def test_what_is_current_is_found_without_hydra_and_pydantic(config: Path, results: Path) -> None:
    manifest.ensure("four", config, results)
    code = (
        "import sys; from pathlib import Path; from kvscope.plan import manifest;"
        "manifest.ensure('four', Path(sys.argv[1]), Path(sys.argv[2]));"
        "print(sorted({'hydra', 'pydantic', 'yaml', 'numpy'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, str(config), str(results)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_a_study_never_planned_has_no_manifest(results: Path) -> None:
    with pytest.raises(BadInput, match=r"manifest\.json: no such file"):
        manifest.read("four", results)


def test_a_bigger_cache_needs_more_memory_on_a_cpu_and_a_gpu_is_one() -> None:
    small, big, cuda = (
        manifest.resources(expand(None, [override], CONFIG).experiments[0].experiment)
        for override in ("cache.gib=1", "cache.gib=2", "device=cuda")
    )
    assert big["memory_mib"] - small["memory_mib"] == 1024
    assert (small["gpus"], cuda["gpus"]) == (0, 1)
    threads = expand(None, ["device.threads=7"], CONFIG).experiments[0].experiment
    assert manifest.resources(threads)["threads"] == 7


def test_json_holds_id_and_resolved_experiment(config: Path, results: Path) -> None:
    plan = expand("four", [], config)
    for row, planned in zip(show.as_json(plan), plan.experiments, strict=True):
        assert row["id"] == planned.experiment.id
        assert row["experiment"]["model"]["layers"] == 4
        assert json.loads(json.dumps(row)) == row


def test_the_table_has_a_line_for_each_experiment(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = expand("four", [], config)
    show.print_table(plan)
    header, *lines, total = capsys.readouterr().out.splitlines()
    assert header.split() == ["id", "seed", "batching"]
    assert [line.split()[0] for line in lines] == [p.experiment.id for p in plan.experiments]
    assert total == "4 experiments: T"
