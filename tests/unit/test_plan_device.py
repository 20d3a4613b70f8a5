"""Device of a planned study; nobody measures on a CPU by accident."""

import json
import re
import shlex
from pathlib import Path

import pytest

from kvscope.base.errors import EXIT_DONE
from kvscope.cli import main as cli
from kvscope.cli import packages, workflow
from kvscope.plan import grid, manifest

ROOT = Path(__file__).parents[2]
OF_CONFIG = ["--config-dir", str(ROOT / "config")]


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    """The last line of a plan, and its notes."""
    assert cli.main(["plan", *words, *OF_CONFIG]) == EXIT_DONE
    output = capsys.readouterr()
    return output.out.splitlines()[-1], output.err


@pytest.mark.parametrize(
    ("words", "devices"),
    [
        ((), "1 experiment on device=cpu, about "),
        (("device=cuda",), "1 experiment on device=cuda, about "),
        (("device=cpu,dry",), "2 experiments on device=cpu,dry, about "),
    ],
)
def test_a_plan_says_its_devices(
    words: tuple[str, ...], devices: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert planned(capsys, *words)[0].startswith(devices)


@pytest.mark.parametrize(
    ("environment", "words", "on_cpu"),
    [
        ("cuda", (), 1),
        ("cuda", ("device=cpu,cuda",), 1),
        ("cuda", ("device=cuda",), 0),
        ("cuda", ("device=dry",), 0),
        ("cpu", (), 0),
        ("cpu", ("device=cuda",), 0),
    ],
)
def test_a_gpu_that_would_be_left_unused_is_noted(
    environment: str,
    words: tuple[str, ...],
    on_cpu: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(packages, "device", lambda: environment)
    noted = r"made for a GPU, but (\d) of the experiments run on the CPU: device=cuda measures"
    expected = [str(on_cpu)] if on_cpu else []
    assert re.findall(noted, planned(capsys, *words)[1]) == expected
    workflow.plan(workflow.Options(None, words), ROOT / "config", tmp_path)
    assert re.findall(noted, capsys.readouterr().err) == expected, "with snakemake, too"


def commands(document: str) -> list[str]:
    """The commands of a document that measure on a cluster."""
    text = (ROOT / document).read_text(encoding="utf-8").replace("\\\n#", " ").replace("\\\n", " ")
    starts = r"snakemake --profile profiles/(?:polaris|slurm|local-gpus) |kvscope (?:submit|run) "
    return re.findall(rf"(?m)^[# ]*((?:{starts}).*study=.*)$", text)


CLUSTER = [
    "docs/POLARIS.md",
    "README.md",
    *(f"profiles/{name}/config.yaml" for name in ("polaris", "slurm", "local-gpus")),
]


@pytest.mark.packages
@pytest.mark.parametrize("document", CLUSTER)
def test_every_command_for_a_cluster_with_gpus_measures_on_a_gpu(document: str) -> None:
    assert commands(document)
    for command in commands(document):
        words = shlex.split(command.partition("  #")[0])
        overrides = next((w.split("=", 1)[1] for w in words if w.startswith("overrides=")), "")
        settings = [w for w in words if re.match(r"(study|device|device\.hardware|exclusive)=", w)]
        study, given = manifest.split_study([*settings, *overrides.split()])
        plan = grid.expand(study, given, ROOT / "config")
        assert {p.experiment.device.gpus for p in plan.experiments} == {1}, command


def test_the_page_of_polaris_names_the_study_that_its_commands_make() -> None:
    text = (ROOT / "docs/POLARIS.md").read_text(encoding="utf-8")
    name = manifest.name_of("quickstart", ["device=cuda", "device.hardware=a100-40gb"])
    assert set(re.findall(r"quickstart-[0-9a-f]{8}", text)) == {name}


def test_as_json_each_experiment_has_its_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "device=cuda", "--json", *OF_CONFIG]) == EXIT_DONE
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["experiment"]["device"]["name"] == "cuda"
