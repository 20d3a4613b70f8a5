"""`kvscope calibrate` writes a whole file, or none; it reads no run that its id does not fit."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvscope.base import files
from kvscope.base.errors import EXIT_BAD_INPUT, EXIT_FAILED, BadInput
from kvscope.cli import main as cli
from kvscope.plan import documents
from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand
from kvscope_model.calibration import calibrate
from kvscope_model.calibration.measured import require_one_attention
from tests.unit.test_command_line import parsed
from tests.unit.test_experiment_id import CONFIG, edit, write_run
from tests.unit.test_machines import full_disk

FITTED = SimpleNamespace(lines=lambda: ["a table"])
PUBLISHED = SimpleNamespace(
    calibrate=lambda _: FITTED, write_errors=lambda _, path: files.write_text(path, "errors: {}")
)
"""Published times that are fitted quickly."""
WORDS = (
    *("device=modeled", "device.hardware=a100-40gb", "workload=zipf", "workload.num_requests=8"),
    *("batching=chunked", "overflow=swap", "cache.blocks=80", "seed=3"),
)
EDITS = [
    ("device.hardware", "h100"),
    ("device.constants", {"memory_bytes_per_s": 1e12}),
    ("device.kernels", "vllm"),
    ("seed", 4),
]


def planned(*words: str) -> Experiment:
    return expand(None, [*WORDS, *words], CONFIG).experiments[0].experiment


def test_where_it_cannot_write_it_fails_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(calibrate, "published_times", lambda: PUBLISHED)
    with full_disk():
        code = cli.main(["calibrate", "--published", "--out", "fitted.yaml"])
    assert code == EXIT_FAILED
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "cannot be written (File too large)" in sentence
    assert not any(tmp_path.iterdir())


def test_a_special_file_is_not_replaced_by_a_regular_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Root would replace /dev/full by a file, and a full disk looks like an empty one."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setattr(calibrate, "published_times", lambda: PUBLISHED)
    assert cli.main(["calibrate", "--published", "--out", str(pipe)]) == EXIT_BAD_INPUT
    assert f"{pipe}: not a regular file" in capsys.readouterr().err
    assert pipe.is_fifo()


def test_settings_of_another_experiment_are_refused(tmp_path: Path) -> None:
    experiment = planned()
    run = tmp_path / "experiments" / experiment.id
    write_run(run, experiment.id, experiment.to_dict())
    require_one_attention([run])
    for key, value in EDITS:
        settings = documents.load_mapping(run / "experiment.yaml")
        edit(settings, key, value)
        write_run(run, experiment.id, settings)
        with pytest.raises(BadInput) as refused:
            require_one_attention([run])
        assert "\n" not in str(refused.value)


def test_it_refuses_them_before_it_writes(tmp_path: Path) -> None:
    asked, other = planned(), planned("model.layers=3")
    run = write_run(tmp_path / "experiments" / asked.id, asked.id, other.to_dict())
    with pytest.raises(BadInput, match=asked.id):
        require_one_attention([run])
    assert cli.main(["calibrate", str(run), "--out", str(tmp_path / "out.yaml")]) != 0
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {
        *("run.json", "experiment.yaml")
    }


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("calibrate --samples 0", "'0' is not a whole number of at least 1"),
        ("calibrate --samples 1.5", "'1.5' is not a whole number of at least 1"),
    ],
)
def test_a_number_that_cannot_be_is_refused(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(*words.split())
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
