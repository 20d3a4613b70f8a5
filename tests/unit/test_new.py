"""`kvscope new NAME`: a study that plans as it is, and never overwrites one."""

import re
import shlex
from pathlib import Path

import pytest

from kvscope.cli.main import main
from kvscope.plan import layers, schema
from kvscope.plan.grid import expand

CONFIG = Path(__file__).parents[2] / "config"
HERE = Path("config")


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_it_prints_the_path_and_a_command_that_plans_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "mine"]) == 0
    path, then = capsys.readouterr().out.splitlines()
    assert path == "config/study/mine.yaml"
    assert "study=mine" in Path(path).read_text()
    command, *words = shlex.split(then.removeprefix("next: "))
    assert command == "kvscope"
    assert main(words) == 0
    assert "4 experiments" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["null", "true", "no", "nan"])
def test_a_name_that_is_a_value_of_yaml_is_a_name(name: str) -> None:
    assert main(["new", name]) == 0
    assert expand(name, [], HERE).title == name


def test_elsewhere_the_command_says_where(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "mine", "--config-dir", "my settings"]) == 0
    path, then = capsys.readouterr().out.splitlines()
    assert Path(path) == Path("my settings/study/mine.yaml")
    assert main(shlex.split(then.removeprefix("next: "))[1:]) == 0


def test_settings_that_its_comments_offer_can_be_planned() -> None:
    main(["new", "mine"])
    path = HERE / "study" / "mine.yaml"
    path.write_text(re.sub(r"^    # ", "    ", path.read_text(), flags=re.MULTILINE))
    experiments = [planned.experiment for planned in expand("mine", [], HERE).experiments]
    assert len(experiments) == 6  # 2 sizes x 2 policies x 2 rows, less 2 that are excluded
    assert {e.overflow.name for e in experiments} == {"recompute", "swap"}
    assert not any(e.cache.blocks == 32 and e.batching.name == "chunked" for e in experiments)


def test_it_brings_the_schema_that_editors_look_for() -> None:
    main(["new", "mine"])
    path = HERE / "study" / "mine.yaml"
    relative = path.read_text().splitlines()[0].partition("$schema=")[2]
    assert (path.parent / relative).read_text() == schema.text()


def test_an_outdated_schema_is_replaced() -> None:
    main(["new", "mine"])
    (HERE / layers.STUDY_SCHEMA.name).write_text("{}")
    main(["new", "another"])
    assert (HERE / layers.STUDY_SCHEMA.name).read_text() == schema.text()


def refused(name: str, capsys: pytest.CaptureFixture[str], code: int = 2) -> str:
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    assert main(["new", "--", name]) == code
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before
    sentence = capsys.readouterr().err
    assert sentence.startswith("kvscope: ")
    assert sentence.count("\n") == 1
    return sentence


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../mine", "a/b", "a b", "mine.yaml", "-x", "1", "größe", "a\nb", "x" * 61],
)
def test_names_that_make_no_good_file_are_refused(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert repr(name) in refused(name, capsys)


def test_the_name_of_plans_without_a_study_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "'adhoc'" in refused("adhoc", capsys)


def test_a_study_that_there_is_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    main(["new", "mine"])
    (HERE / "study" / "mine.yaml").write_text("title: edited\n")
    capsys.readouterr()
    assert "config/study/mine.yaml" in refused("mine", capsys)
    assert str(CONFIG / "study" / "quickstart.yaml") in refused("quickstart", capsys)


def test_a_place_that_cannot_be_written_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("config").write_text("a file\n")
    sentence = refused("mine", capsys, code=1)
    assert sentence.startswith("kvscope: config/study")
    assert ": cannot be written (" in sentence
