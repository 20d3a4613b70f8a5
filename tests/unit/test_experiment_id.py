"""The id is a hash of the settings: settings edited under their old id are refused by every reader.

A forger makes all recorded hashes fit; only the id cannot be made to fit.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvscope.base.errors import BadInput
from kvscope.cli.main import main
from kvscope.judge.planned import confirm_settings, experiment_of
from kvscope.judge.records import Records
from kvscope.plan import documents, manifest
from kvscope.plan.experiment import Experiment, dump, load, read_settings
from kvscope.plan.grid import expand
from kvscope.report.check_run import check_run
from kvscope.report.load import load_run
from kvscope.tables import runfile

CONFIG = Path(__file__).parents[2] / "config"
WORDS = (
    *("device=dry", "device.pass_s=0.02", "workload=zipf", "workload.num_requests=8"),
    *("batching=chunked", "overflow=swap", "cache.blocks=80", "seed=3"),
)
# A place in the settings, and what a forger writes there.
EDITS: list[tuple[str, Any]] = [
    ("seed", 4),
    ("repeats", 2),
    ("warmup", 1),
    ("exclusive", True),
    ("batching", {"name": "mixed"}),
    ("batching.chunk_tokens", 128),
    ("overflow", {"name": "recompute"}),
    ("overflow.copies", "coalesced"),
    ("overflow.host_memory", "pageable"),
    ("overflow.host_gib", 32.0),
    ("workload.theta", 0.9),
    ("workload.num_requests", 9),
    ("workload", "poisson"),
    ("device.pass_s", 0.03),
    ("device.copy_s", 0.002),
    ("engine.max_num_seqs", 128),
    ("engine.max_num_batched_tokens", 512),
    ("cache.blocks", 81),
    ("cache.watermark", 0.02),
    ("cache.admission", "vllm-0.4.2"),
    ("model.layers", 8),
    ("model.name", "tinier-llama"),
    ("tracing.step_stride", 2),
    ("profiler.name", "nsys"),
    ("profiler.unheard_of", 1),
]


def planned(*words: str) -> Experiment:
    return expand(None, [*WORDS, *words], CONFIG).experiments[0].experiment


def edit(settings: dict[str, Any], key: str, value: Any) -> None:
    *above, last = key.split(".")
    for part in above:
        settings = settings[part]
    if (key, value) == ("workload", "poisson"):
        settings[last] |= {"arrival": "poisson", "rate_per_s": 2.0}
    else:
        assert settings.get(last) != value
        settings[last] = value


def write_run(directory: Path, experiment_id: str, settings: dict[str, Any]) -> Path:
    """A run whose recorded hashes fit whatever its settings are."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "experiment.yaml").write_text(documents.dump(settings))
    files = {"experiment.yaml": runfile.file_record(directory / "experiment.yaml")}
    record = {"experiment_id": experiment_id, "status": "complete", "files": files}
    runfile.write_run(directory, record)
    return directory


READERS: dict[str, Callable[[Path], Any]] = {
    "run": lambda run: load(run / "experiment.yaml"),
    "analyse": lambda run: confirm_settings(Records(run)),
    "intervals and predictions": lambda run: experiment_of(Records(run)),
    "collect and report": read_settings,
}


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["results/experiments/{}", "mine"])
def test_settings_of_another_experiment_are_refused_by_every_reader(
    place: str, tmp_path: Path
) -> None:
    experiment = planned()
    run = tmp_path / place.format(experiment.id)
    write_run(run, experiment.id, experiment.to_dict())
    for read in READERS.values():
        read(run)
    for key, value in EDITS:
        settings = documents.load_mapping(run / "experiment.yaml")
        edit(settings, key, value)
        write_run(run, experiment.id, settings)
        for reader, read in READERS.items():
            with pytest.raises(BadInput) as refused:
                read(run)
            assert str(refused.value).count("\n") == 0, (reader, key)
        assert any("experiment.yaml" in c for c in check_run(run)), key
        assert load_run(run, experiment.id, "", {}).failure, key
        write_run(run, experiment.id, experiment.to_dict())


def test_the_sentence_has_both_ids_and_a_remedy(tmp_path: Path) -> None:
    asked, other = planned(), planned("model.layers=3")
    run = write_run(tmp_path / "experiments" / asked.id, asked.id, other.to_dict())
    with pytest.raises(BadInput) as refused:
        load(run / "experiment.yaml")
    for part in (asked.id, other.id, "restore the file"):
        assert part in str(refused.value)


def test_a_run_of_another_experiment_in_this_ones_directory_is_refused(tmp_path: Path) -> None:
    asked, other = planned(), planned("model.layers=3")
    run = write_run(tmp_path / "experiments" / asked.id, other.id, other.to_dict())
    for read in READERS.values():
        with pytest.raises(BadInput, match=asked.id):
            read(run)
    assert any(asked.id in complaint for complaint in check_run(run))


@pytest.mark.parametrize("command", ["run", "collect", "analyse", "check"])
def test_commands_refuse_them_before_they_write(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked, other = planned(), planned("model.layers=3")
    run = write_run(tmp_path / "experiments" / asked.id, asked.id, other.to_dict())
    given = [str(run / "experiment.yaml" if command == "run" else run)]
    assert main([command, *given]) != 0
    output = capsys.readouterr().err
    assert command == "analyse" or other.id in output
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {
        *("run.json", "experiment.yaml")
    }


def test_planning_again_restores_the_file_even_if_its_hash_was_made_to_fit(tmp_path: Path) -> None:
    experiment = planned()
    directory = manifest.experiment_path(experiment.id, tmp_path).parent
    write_run(directory, experiment.id, planned("model.layers=3").to_dict())
    manifest.write(expand(None, list(WORDS), CONFIG), tmp_path)
    assert (directory / "experiment.yaml").read_text() == dump(experiment)


def test_an_option_of_a_package_that_is_not_here_is_read_but_not_confirmed(tmp_path: Path) -> None:
    settings = planned().to_dict() | {"overflow": {"name": "stash", "times": 3}}
    name = "tiny-llama-cpu-zipf8-chunked-stash-b80x32-0123456789"
    run = write_run(tmp_path / "experiments" / name, name, settings)
    assert Records(run).settings == read_settings(run) == settings
    assert any("overflow=stash" in complaint for complaint in check_run(run))
    with pytest.raises(BadInput, match="overflow"):
        load(run / "experiment.yaml")
