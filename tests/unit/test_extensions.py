"""A refusal without a package of this repository names the package, in one sentence."""

import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pytest

from kvscope.base import extensions, plugins
from kvscope.base.errors import EXIT_BAD_INPUT, BadInput
from kvscope.cli import main as cli
from kvscope.plan import layers, registry
from kvscope.plan.experiment import unknown_options
from kvscope.plan.grid import expand

ROOT = Path(__file__).parents[2]
KINDS = ("command", "importer", *registry.KINDS)


def names_of(project: Path) -> Iterator[tuple[str, str]]:
    """The names that a project brings, with their kinds: those registered, and those of files."""
    points = tomllib.loads(project.read_text("utf-8"))["project"].get("entry-points", {})
    for kind in KINDS:
        for name in points.get(f"kvscope.{kind}", {}):
            yield kind, name
    for pattern in ("config/*/*.yaml", "src/*/config/*/*.yaml"):
        for path in project.parent.glob(pattern):
            yield path.parent.name, path.stem


def test_the_table_has_what_the_packages_bring() -> None:
    projects = sorted(ROOT.glob("packages/kvscope-*/pyproject.toml"))
    brought = {name: project.parent.name for project in projects for name in names_of(project)}
    assert len(brought) > 30
    assert extensions.brought() == brought


def test_a_name_is_listed_once() -> None:
    packages = tomllib.loads(extensions.LISTED.read_text("utf-8")).values()
    names = [(kind, n) for kinds in packages for kind, listed in kinds.items() for n in listed]
    assert len(names) == len({*names}) == len(extensions.brought())


CACHES: tuple[Any, ...] = (
    *(plugins.names, plugins.find, layers.package_directories),
    *(registry.find_registered, registry.load_all),
)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An environment with kvscope, and none of the packages that extend it."""
    monkeypatch.setattr(plugins, "entry_points", _own)
    for cached in CACHES:
        cached.cache_clear()
    yield
    for cached in CACHES:
        cached.cache_clear()


def _own(group: str, name: str | None = None) -> list[EntryPoint]:
    return [
        point
        for point in entry_points(group=group)
        if name in (None, point.name) and point.dist and point.dist.name == "kvscope"
    ]


def refusal(*words: str, study: str | None = None) -> str:
    with pytest.raises(BadInput) as raised:
        expand(study, list(words), layers.SHIPPED_CONFIG)
    return str(raised.value)


@pytest.mark.parametrize(
    ("option", "package"),
    [
        ("device=modeled", "kvscope-model"),
        ("device=offload", "kvscope-offload"),
        ("overflow=native", "kvscope-connectors"),
        ("overflow=activation", "kvscope-offload"),
        ("overflow=adaptive", "kvscope-offload"),
        ("tracing=full", "kvscope-kernels"),
    ],
)
@pytest.mark.usefixtures("alone")
def test_an_option_is_refused_by_its_package(option: str, package: str) -> None:
    instrumented = ["engine.attention=instrumented"] if option.startswith("tracing") else []
    said = refusal(option, *instrumented)
    assert f"the package {package}, wh" in said
    assert "install it, or take" in said


@pytest.mark.parametrize(
    ("study", "package"),
    [
        ("league", "kvscope-connectors"),
        ("families", "kvscope-model"),
        ("crossover", "kvscope-offload"),
        ("paper", "kvscope-paper"),
    ],
)
@pytest.mark.usefixtures("alone")
def test_a_study_is_refused_by_its_package(study: str, package: str) -> None:
    said = refusal(study=study)
    assert said.startswith(f"study is '{study}' but the package {package}, which brings it")
    assert "batching-cpu" in said


STUDY = """
title: T
grids: [{name: g, set: {device: modeled, device.hardware: h100}, product: {seed: [1, 2]}}]
figures: [{throughput: {x: device.constants.pinned_in_bytes_per_s}}]
"""


@pytest.mark.usefixtures("alone")
def test_a_study_with_keys_of_an_absent_option_is_refused_by_the_option(tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "mine.yaml").write_text(STUDY)
    with pytest.raises(BadInput, match=r"device is 'modeled' .* the package kvscope-model, which"):
        expand("mine", [], tmp_path)


@pytest.mark.usefixtures("alone")
def test_unknown_names_that_no_package_brings_are_refused_as_before() -> None:
    assert "must be one of cpu, cuda" in refusal("device=modelled")
    assert "study is 'leage' but must be one of" in refusal(study="leage")
    assert len(expand(None, ["device=cpu"], layers.SHIPPED_CONFIG).experiments) == 1


@pytest.mark.usefixtures("alone")
def test_a_planned_experiment_is_refused_by_the_package_of_its_option() -> None:
    said = registry.unknown_option("overflow", "native")
    assert said.startswith("overflow.name is 'native' but the package kvscope-connectors, which")
    assert "must be one of recompute, swap" in registry.unknown_option("overflow", "stash")


COMMANDS = {
    "bytes": "kvscope-model",
    "record": "kvscope-record",
    "score": "kvscope-paper",
    "explain": "kvscope-explain",
    "submit": "kvscope-cluster",
    "rehearse": "kvscope-rehearsal",
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.usefixtures("alone")
def test_a_command_is_refused_by_its_package(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, "whatever", "--json"]) == EXIT_BAD_INPUT
    output = capsys.readouterr().err
    assert output.count("\n") == 1
    assert f"{command} is no command here: the package {COMMANDS[command]}, which" in output


@pytest.mark.packages
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_is_there_is_not_refused(command: str) -> None:
    assert cli.refusal_of_absent([command]) is None


@pytest.mark.usefixtures("alone")
def test_other_words_are_left_to_the_parser(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--version"], ["nosuch"], ["plan", "bytes"]):
        assert cli.refusal_of_absent(words) is None
    with pytest.raises(SystemExit):
        cli.main(["nosuch"])
    assert "invalid choice: 'nosuch'" in capsys.readouterr().err


@pytest.mark.usefixtures("alone")
def test_published_files_are_refused_by_the_package_of_their_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["import", "unboxkv", "x", "--out", str(tmp_path / "run")]) == EXIT_BAD_INPUT
    assert "unknown kind 'unboxkv'; the package kvscope-paper, which" in capsys.readouterr().err


SETTINGS = {
    "device": {"name": "modeled"},
    "overflow": {"name": "native"},
    "batching": {"name": "mixed"},
    "tracing": {"name": "full"},
}


@pytest.mark.usefixtures("alone")
def test_settings_whose_package_is_absent_are_listed() -> None:
    assert unknown_options(SETTINGS) == ["device=modeled", "overflow=native", "tracing=full"]
    assert unknown_options(SETTINGS | {"tracing": {"name": "none"}})[2:] == []
    assert unknown_options({"tracing": "full", "device": {"name": 3}}) == []
