"""Files that an experiment names: found from where they are named, known by what they hold."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from kvscope.base.errors import BadInput
from kvscope.base.files import sha256_of
from kvscope.plan import sources
from kvscope.plan.experiment import Experiment, dump, load
from kvscope.plan.grid import expand
from kvscope.workload import requests
from kvscope.workload.trace import Trace

CONFIG = Path(__file__).parents[2] / "config"
TRACE = "prompt_tokens,output_tokens\n9,3\n"
STUDY = """
title: T
grids:
  - name: g
    set: {{workload: trace, workload.arrival: all_at_once, workload.path: {path}}}
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the configuration and traces; the working directory."""
    return made(tmp_path / "checkout", monkeypatch)


def made(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(CONFIG, directory / "config")
    for place in ("data", "config/study"):
        (directory / place).mkdir(exist_ok=True)
        (directory / place / "t.csv").write_text(TRACE)
    monkeypatch.chdir(directory)
    return directory


def study(path: str, *overrides: str, config: Path = Path("config")) -> Experiment:
    """The experiment of a study whose file names this path."""
    (config / "study" / "mine.yaml").write_text(STUDY.format(path=path))
    return expand("mine", list(overrides), config).experiments[0].experiment


def given(*overrides: str) -> Experiment:
    words = ["workload=trace", "workload.arrival=all_at_once", *overrides]
    return expand(None, words, Path("config")).experiments[0].experiment


def path_of(experiment: Experiment) -> str:
    ((_, path, _),) = sources.source_files(experiment.workload)
    return path


def test_a_path_in_a_study_is_relative_to_the_study(checkout: Path) -> None:
    assert path_of(study("t.csv")) == "config/study/t.csv"
    assert path_of(study("../../data/t.csv")) == "data/t.csv"


def test_a_path_on_the_command_line_is_relative_to_the_working_directory(checkout: Path) -> None:
    assert path_of(given("workload.path=data/t.csv")) == "data/t.csv"
    assert path_of(study("none.csv", "workload.path=data/t.csv")) == "data/t.csv"


def test_a_path_in_an_option_is_relative_to_the_option(checkout: Path) -> None:
    option = Path("config/workload/mine.yaml")
    option.write_text("name: trace\npath: ../../data/t.csv\narrival: all_at_once\n")
    planned = expand(None, ["workload=mine"], Path("config")).experiments[0].experiment
    assert path_of(planned) == "data/t.csv"


def test_the_working_directory_decides_nothing_else(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = study("../../data/t.csv")
    monkeypatch.chdir(checkout / "data")
    there = study("../../data/t.csv", config=checkout / "config")
    assert path_of(there) == "t.csv"
    monkeypatch.chdir(checkout.parent)
    above = study("../../data/t.csv", config=checkout / "config")
    assert path_of(above) == "checkout/data/t.csv"
    assert here.id == there.id == above.id


def test_a_path_outside_is_absolute(checkout: Path) -> None:
    outside = checkout.parent / "t.csv"
    outside.write_text(TRACE)
    assert path_of(study("../../../t.csv")) == str(outside)
    assert path_of(given(f"workload.path='{outside}'")) == str(outside)
    assert path_of(given("workload.path=../t.csv")) == str(outside)


def test_a_linked_directory_is_followed_and_a_linked_file_keeps_its_name(checkout: Path) -> None:
    (checkout.parent / "elsewhere").mkdir()
    (checkout.parent / "t.csv").write_text(TRACE)
    Path("config/link").symlink_to(checkout.parent / "elsewhere")
    assert path_of(study("../link/../t.csv")) == str(checkout.parent / "t.csv")
    Path("data/link.csv").symlink_to(checkout.parent / "t.csv")
    assert path_of(given("workload.path=data/link.csv")) == "data/link.csv"


def test_the_home_directory_has_its_sign(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(checkout / "data"))
    assert path_of(given("workload.path='~/t.csv'")) == "data/t.csv"


def test_moving_a_checkout_changes_no_id_and_no_file(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = study("../../data/t.csv")
    made(checkout.parent / "moved", monkeypatch)
    shutil.rmtree(checkout)
    assert dump(study("../../data/t.csv")) == dump(before)


def test_the_id_covers_the_content_and_not_the_path(checkout: Path) -> None:
    before = given("workload.path=data/t.csv")
    assert isinstance(before.workload, Trace)
    assert before.workload.sha256 == sha256_of(Path("data/t.csv"))
    Path("data/t.csv").rename("data/renamed.csv")
    assert given("workload.path=data/renamed.csv").id == before.id
    Path("data/renamed.csv").write_text(TRACE + "9,4\n")
    assert given("workload.path=data/renamed.csv").id != before.id


def test_experiments_of_equal_files_are_one(checkout: Path) -> None:
    shutil.copy("data/t.csv", "data/copy.csv")
    words = ["workload=trace", "workload.arrival=all_at_once"]
    plan = expand(None, [*words, "workload.path=data/t.csv,data/copy.csv"], Path("config"))
    assert len(plan.experiments) == 1
    Path("data/copy.csv").write_text(TRACE * 2)
    plan = expand(None, [*words, "workload.path=data/t.csv,data/copy.csv"], Path("config"))
    labels = [planned.label for planned in plan.experiments]
    assert labels == ["workload.path data/t.csv", "workload.path data/copy.csv"]


def sharegpt(**values: Any) -> Experiment:
    words = [f"workload.{key}={value}" for key, value in values.items()]
    return expand(None, ["workload=sharegpt", *words], Path("config")).experiments[0].experiment


def test_a_tokenizer_is_a_file_like_the_others(checkout: Path) -> None:
    Path("data/a.json").write_text("{}")
    Path("data/b.json").write_text("{ }")
    names = ("null", "data/a.json", "data/b.json")
    estimated, a, b = (sharegpt(path="data/t.csv", tokenizer=name) for name in names)
    assert len({estimated.id, a.id, b.id}) == 3
    shutil.copy("data/a.json", "data/c.json")
    assert sharegpt(path="data/t.csv", tokenizer="data/c.json").id == a.id
    with pytest.raises(BadInput, match=r"workload.tokenizer is 'no.json' .* no file 'no.json'"):
        sharegpt(path="data/t.csv", tokenizer="no.json")


def test_a_file_that_is_missing_is_named_with_study_key_and_place(checkout: Path) -> None:
    with pytest.raises(BadInput) as error:
        study("../../gone.csv")
    assert str(error.value) == (
        "workload.path is '../../gone.csv' (config/study/mine.yaml grid 'g') but there is no file "
        "'gone.csv'; it must name a trace, a .jsonl as those of github.com/kvcache-ai/Mooncake or "
        "a .csv with prompt_tokens and output_tokens"
    )


NO_FILES = [".", "data", "/dev/zero", "x" * 5000, "t.csv/t.csv", "loop/t.csv", '"a\\0b"', '"a\\nb"']


@pytest.mark.parametrize("path", NO_FILES, ids=lambda path: path[:20])
def test_a_path_that_is_no_file_is_refused(path: str, checkout: Path) -> None:
    Path("config/study/loop").symlink_to("loop")
    with pytest.raises(BadInput, match=r"^workload\.path is .*grid 'g'") as error:
        study(path)
    assert str(error.value).isprintable()


def test_a_file_that_readers_could_not_hold_is_refused(checkout: Path) -> None:
    with Path("data/t.csv").open("ab") as file:
        file.truncate(2**32 + 1)  # sparse
    with pytest.raises(BadInput, match=r"'data/t.csv' is larger than 4 GiB"):
        given("workload.path=data/t.csv")


def test_a_hash_may_be_given_and_then_it_holds(checkout: Path) -> None:
    planned = given("workload.path=data/t.csv")
    sha256 = sha256_of(Path("data/t.csv"))
    assert given("workload.path=data/t.csv", f"workload.sha256={sha256}").id == planned.id
    with pytest.raises(BadInput, match=r"sha256 is 'aaa' \(the command line\) but 'data/t"):
        given("workload.path=data/t.csv", "workload.sha256=aaa")


def test_a_file_that_changed_after_planning_is_refused(checkout: Path, tmp_path: Path) -> None:
    path = tmp_path / "experiment.yaml"
    path.write_text(dump(given("workload.path=data/t.csv")))
    planned = load(path)
    assert len(requests.build(planned)) == 1
    os.utime("data/t.csv", ns=(0, 0))  # touched, and the same
    assert len(requests.build(planned)) == 1
    Path("data/t.csv").write_text(TRACE.replace("9", "8"))
    for use in (requests.check, requests.build):
        with pytest.raises(BadInput, match=r"workload.path is 'data/t.csv', .* changed .* plan ag"):
            use(planned)
    Path("data/t.csv").unlink()
    for use in (requests.check, requests.build):
        with pytest.raises(BadInput, match=r"workload.path is 'data/t.csv', .* there is no file"):
            use(planned)


def test_a_planned_experiment_has_its_hashes(checkout: Path, tmp_path: Path) -> None:
    path = tmp_path / "experiment.yaml"
    text = dump(given("workload.path=data/t.csv"))
    path.write_text("".join(line for line in text.splitlines(True) if "sha256" not in line))
    with pytest.raises(BadInput, match=r"workload.sha256 is missing \(.*experiment.yaml\)"):
        load(path)
    path.write_text(text.replace("sha256: ", "sha256: x"))
    with pytest.raises(BadInput, match=r"workload.sha256 is 'x.* must be a SHA-256"):
        load(path)
    Path("data/a.json").write_text("{}")
    text = dump(sharegpt(path="data/t.csv", tokenizer="data/a.json"))
    path.write_text("".join(x for x in text.splitlines(True) if "tokenizer_sha256" not in x))
    with pytest.raises(BadInput, match=r"workload.tokenizer and .* must both be set, or neither"):
        load(path)


def test_a_thousand_experiments_read_the_file_once(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []

    def noting_hash(path: Path) -> str:
        read.append(path)
        return sha256_of(path)

    monkeypatch.setattr(sources, "sha256_of", noting_hash)
    words = ["workload=trace", "workload.path=data/t.csv", "seed=range(1,51)"]
    assert len(expand(None, words, Path("config")).experiments) == 50
    assert len(read) == 1
