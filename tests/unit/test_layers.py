"""Layers of the configuration: the user's directory, the shipped one, those of packages."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.base import plugins
from kvscope.base.errors import BadInput
from kvscope.cli.main import main
from kvscope.plan import layers, manifest
from kvscope.plan.grid import Plan, expand

CONFIG = Path(__file__).parents[2] / "config"
STUDY = """
title: T
grids: [{name: g, set: {workload: zipf, seed: 3}, product: {model: [tiny-opt, tiny-gqa]}}]
"""
HERE = Path("config")
CHOICES = ["workload=zipf", "overflow=swap"]


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and a shipped configuration that may be changed."""
    monkeypatch.setattr(layers, "SHIPPED_CONFIG", tmp_path / "shipped")
    shutil.copytree(CONFIG, layers.SHIPPED_CONFIG)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


Bring = Callable[[str], Path]
CACHES = (plugins.names, plugins.find, layers.package_directories)


@pytest.fixture
def bring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bring]:
    """Installs a package of this name that brings a directory of configuration; gives that."""

    def as_pip_does(name: str) -> Path:
        record = tmp_path / "packages" / f"{name}-0.1.dist-info"
        record.mkdir(parents=True)
        (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
        (record / "entry_points.txt").write_text(f"[{layers.GROUP}]\n{name} = {name}.config\n")
        module = tmp_path / "packages" / name
        (module / "config").mkdir(parents=True)
        (module / "__init__.py").touch()
        monkeypatch.syspath_prepend(str(tmp_path / "packages"))
        monkeypatch.delitem(sys.modules, name, raising=False)  # of another test
        for cached in CACHES:
            cached.cache_clear()
        return module / "config"

    yield as_pip_does
    monkeypatch.undo()
    for cached in CACHES:
        cached.cache_clear()


def write(name: str, text: str, directory: Path = HERE) -> Path:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def ids(plan: Plan) -> list[str]:
    return [planned.experiment.id for planned in plan.experiments]


def test_the_shipped_configuration_is_the_checkouts() -> None:
    assert (layers.SHIPPED / "config").resolve() == CONFIG


def test_without_a_users_configuration_the_shipped_one_applies() -> None:
    assert ids(expand("batching-cuda", [], HERE)) == ids(expand("batching-cuda", [], CONFIG))


def test_a_users_study_takes_the_rest_from_the_shipped_configuration() -> None:
    write("study/mine.yaml", STUDY)
    models = [p.experiment.model.name for p in expand("mine", [], HERE).experiments]
    assert models == ["tiny-opt", "tiny-gqa"]


def test_a_users_option_may_begin_with_a_shipped_option() -> None:
    write("model/small.yaml", "defaults: [tiny-llama, _self_]\nname: small\nlayers: 2\n")
    small, tiny = expand(None, ["model=small,tiny-llama"], HERE).experiments
    assert (small.experiment.model.layers, tiny.experiment.model.layers) == (2, 4)
    assert small.experiment.model.hidden_size == tiny.experiment.model.hidden_size
    assert len(expand(None, ["model=glob(small*)"], HERE).experiments) == 1


def test_a_file_replaces_the_shipped_one_of_its_name() -> None:
    shipped = (layers.SHIPPED_CONFIG / "cache" / "default.yaml").read_text()
    write("cache/default.yaml", shipped.replace("256", "128"))
    write("study/quickstart.yaml", STUDY)
    assert expand(None, [], HERE).experiments[0].experiment.cache.blocks == 128
    assert len(expand("quickstart", [], HERE).experiments) == 2


def test_the_defaults_may_be_the_users() -> None:
    config = (layers.SHIPPED_CONFIG / "config.yaml").read_text()
    write("config.yaml", config.replace("model: tiny-llama", "model: small"))
    model = (layers.SHIPPED_CONFIG / "model" / "tiny-gqa.yaml").read_text()
    write("model/small.yaml", model.replace("tiny-gqa", "small"))
    assert expand(None, [], HERE).experiments[0].experiment.model.name == "small"


def test_an_installed_package_brings_studies_and_options(bring: Bring) -> None:
    config = bring("wing")
    write("study/flight.yaml", STUDY.replace("tiny-gqa", "feather"), config)
    write("model/feather.yaml", "defaults: [tiny-llama, _self_]\nname: feather\n", config)
    first, second = expand("flight", [], HERE).experiments
    assert [first.experiment.model.name, second.experiment.model.name] == ["tiny-opt", "feather"]
    assert ids(expand("flight", [], CONFIG)) == ids(expand("flight", [], HERE))
    assert str(config / "study") in refusal(study="x")


def test_a_users_file_replaces_that_of_a_package(bring: Bring) -> None:
    write("study/flight.yaml", "title: of the package\n", bring("wing"))
    write("study/flight.yaml", STUDY)
    assert len(expand("flight", [], HERE).experiments) == 2


def test_two_packages_with_a_file_of_one_name_are_refused(bring: Bring) -> None:
    for name in ("wing", "tail"):
        write("study/flight.yaml", STUDY, bring(name))
    assert "two packages have a file study/flight.yaml" in refusal(study="flight")


def test_a_package_cannot_replace_a_shipped_file(bring: Bring) -> None:
    write("cache/default.yaml", "blocks: 1\n", bring("wing"))
    assert "two packages have a file cache/default.yaml" in refusal()


def test_a_package_without_the_directory_it_names_is_refused(bring: Bring) -> None:
    bring("wing").rmdir()
    assert "wing.config, which an installed package registers" in refusal()


@pytest.fixture(scope="module")
def whole() -> tuple[list[str], str]:
    """Ids and digest of a plan whose configuration has one layer."""
    return ids(expand(None, CHOICES, CONFIG)), manifest.config_sha256("quickstart", CONFIG)


@pytest.mark.slow
@settings(max_examples=6)
@given(st.data())
def test_it_does_not_matter_which_layer_has_a_file(
    whole: tuple[list[str], str], data: st.DataObject
) -> None:
    names = [name for name, path in layers.files(CONFIG).items() if CONFIG in path.parents]
    moved = data.draw(st.sets(st.sampled_from(names)))
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        own, shipped = Path(directory, "own"), Path(directory, "shipped")
        own.mkdir()
        for name in names:
            write(name, (CONFIG / name).read_text(), own if name in moved else shipped)
        patch.setattr(layers, "SHIPPED_CONFIG", shipped)
        split = ids(expand(None, CHOICES, own)), manifest.config_sha256("quickstart", own)
    assert split == whole


def test_a_plan_is_current_until_a_layer_that_it_is_made_of_changes() -> None:
    write("study/mine.yaml", STUDY)
    write("model/tiny-opt.yaml", (CONFIG / "model" / "tiny-opt.yaml").read_text())

    def changes(path: Path) -> bool:
        before = manifest.config_sha256("mine", HERE)
        path.write_text(path.read_text() + "# a thought\n")
        return manifest.config_sha256("mine", HERE) != before

    assert changes(HERE / "study" / "mine.yaml")
    assert changes(HERE / "model" / "tiny-opt.yaml")
    assert changes(layers.SHIPPED_CONFIG / "model" / "tiny-gqa.yaml")
    assert not changes(layers.SHIPPED_CONFIG / "study" / "quickstart.yaml")
    assert not changes(layers.SHIPPED_CONFIG / "model" / "tiny-opt.yaml")  # the own one counts


def refusal(*words: str, study: str | None = None) -> str:
    with pytest.raises(BadInput) as error:
        expand(study, list(words), HERE)
    return str(error.value)


def test_messages_name_the_file_that_was_read() -> None:
    shipped = layers.SHIPPED_CONFIG
    write("model/bad.yaml", "name: bad\nlayers: none\n")
    write("study/bad.yaml", "title: T\n")
    assert f"({HERE / 'model' / 'bad.yaml'})" in refusal("model=bad")
    assert f"({shipped / 'workload' / 'trace.yaml'})" in refusal("workload=trace")
    assert f"({HERE / 'study' / 'bad.yaml'})" in refusal(study="bad")
    both = f"the files in {HERE / 'model'} and {shipped / 'model'}"
    assert "one of bad, deepseek-v2-lite" in refusal("model=x")
    assert both in refusal("model=x")
    assert f"(the files in {shipped / 'device'}" in refusal("device=x")
    assert f"{HERE / 'study'} and {shipped / 'study'}" in refusal(study="x")
    write("config.yaml", "defaults: [{model: bad}, {model: nope}]\n")
    assert f"({HERE / 'config.yaml'}, defaults)" in refusal()


def test_a_directory_of_another_kind_is_no_configuration() -> None:
    write("database/main.yaml", "host: here\n")
    (HERE / "database" / ".#main.yaml").symlink_to("user@host.1")  # an editor's lock
    assert ids(expand(None, [], HERE)) == ids(expand(None, [], CONFIG))
    manifest.config_sha256("quickstart", HERE)
    assert "database (the command line) is not a key" in refusal("database=main")


def test_a_directory_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["plan", "--config-dir", "confg"])
    assert end.value.code == 2
    assert "'confg' is not a directory" in capsys.readouterr().err
