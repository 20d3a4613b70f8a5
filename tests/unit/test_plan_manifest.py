"""The plan on disk: what is written, and when it is written again."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.base.errors import BadInput
from kvscope.base.files import sha256_of
from kvscope.base.quantities import rough_duration
from kvscope.plan import grid, manifest, pairs, show, together
from kvscope.plan.experiment import load
from kvscope.plan.grid import expand
from kvscope.plan.question import Question
from kvscope.plan.traits import in_words
from kvscope.report.load import load_study
from kvscope.tables import runfile

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
    written = manifest.plan_if_changed("four", config, results)
    assert len(written["experiments"]) == 4
    for entry in written["experiments"]:
        found = load(results / "experiments" / entry["id"] / "experiment.yaml")
        assert found.id == entry["id"]
        assert found.seed == entry["varied"]["seed"]
    assert written == json.loads((results / "studies" / "four" / "manifest.json").read_text())
    assert written == manifest.read("four", results)


def test_entries_say_what_sets_an_experiment_apart(config: Path, results: Path) -> None:
    written = manifest.plan_if_changed("four", config, results)
    assert written["varied_keys"] == ["seed", "batching"]
    assert written["experiments"][1]["label"] == "seed 1, chunked"
    labels = {entry["id"]: entry["label"] for entry in written["experiments"]}
    assert load_study("four", results).labels == labels
    assert written["experiments"][1]["varied"] == {"seed": 1, "batching": "chunked"}


def test_a_manifest_has_traits_and_pairs_as_they_were_planned(config: Path, results: Path) -> None:
    (config / "study" / "named.yaml").write_text(
        "title: T\n"
        "compare: {key: overflow, base: recompute}\n"
        "levels: {cache.blocks: {64: scarce, 128: ample}}\n"
        "grids: [{name: g, product: {cache.blocks: [64, 128]}, linked: [[{overflow: recompute},"
        " {overflow: swap, overflow.copies: coalesced}, {overflow: swap}]]}]\n"
    )
    plan = expand("named", [], config)
    path = manifest.write(plan, results)
    stored = pairs.read(manifest.read("named", results), path)
    assert stored == plan.compared
    assert [in_words(row) for row in stored.traits.values()] == [*plan.compared.labels.values()]
    label = plan.compared.labels
    assert {"recompute, scarce", "swap (coalesced), ample"} <= {*label.values()}
    assert ("recompute, scarce", "recompute, ample") in [
        (label[base], label[other]) for base, other in stored.pairs["cache.blocks"]
    ]
    for base, other in stored.pairs["overflow"]:
        assert label[base].startswith("recompute")
        assert label[base].rpartition(", ")[2] == label[other].rpartition(", ")[2]
    assert len(stored.pairs["overflow"]) == 4


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda m: m["pairs"]["seed"].append(["x", "y"]), "must have pairs of ids"),
        (lambda m: m["pairs"]["seed"].append([m["experiments"][0]["id"]]), "must have pairs"),
        (lambda m: m["experiments"][0]["traits"].update(seed=[1]), "must be a trait"),
        (lambda m: m["experiments"][0]["traits"].update(seed={"option": 1}), "must be a trait"),
    ],
)
def test_traits_and_pairs_that_are_damaged_are_refused(
    damage: Callable[[dict[str, Any]], None], words: str, config: Path, results: Path
) -> None:
    written = manifest.plan_if_changed("four", config, results)
    written["pairs"].setdefault("seed", [])
    damage(written)
    with pytest.raises(BadInput, match=words):
        pairs.read(written, "manifest.json")


def test_nothing_is_written_again_that_stays_the_same(config: Path, results: Path) -> None:
    manifest.write(expand("four", [], config), results)
    before = times(results)
    manifest.write(expand("four", [], config), results)
    assert times(results) == before


def test_a_comment_changes_no_experiment(config: Path, results: Path) -> None:
    manifest.plan_if_changed("four", config, results)
    before = times(results / "experiments")
    path = config / "config.yaml"
    path.write_text("# a comment\n" + path.read_text())
    manifest.plan_if_changed("four", config, results)
    assert times(results / "experiments") == before


def test_a_changed_study_writes_only_what_is_new(config: Path, results: Path) -> None:
    manifest.plan_if_changed("four", config, results)
    before = times(results / "experiments")
    (config / "study" / "four.yaml").write_text(STUDY.replace("[1, 2]", "[1, 2, 3]"))
    assert len(manifest.plan_if_changed("four", config, results)["experiments"]) == 6
    after = times(results / "experiments")
    assert {path: after[path] for path in before} == before
    assert len(after) == 6


def _refuse_to_expand(*arguments: object) -> None:
    raise AssertionError("expanded again")


def test_an_unchanged_configuration_is_not_expanded_again(
    config: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = manifest.plan_if_changed("four", config, results)
    (config / "study" / "another.yaml").write_text(STUDY)
    monkeypatch.setattr(grid, "expand", _refuse_to_expand)
    assert manifest.plan_if_changed("four", config, results) == written
    (config / "model" / "tiny-llama.yaml").touch()
    assert manifest.plan_if_changed("four", config, results) == written
    (config / "config.yaml").write_text("seed: 1\n")
    with pytest.raises(AssertionError, match="expanded again"):
        manifest.plan_if_changed("four", config, results)


def test_a_lost_experiment_is_written_again(config: Path, results: Path) -> None:
    entry = manifest.plan_if_changed("four", config, results)["experiments"][0]
    path = results / "experiments" / entry["id"] / "experiment.yaml"
    content = path.read_bytes()
    path.unlink()
    manifest.plan_if_changed("four", config, results)
    assert path.read_bytes() == content


def test_a_manifest_with_overrides_is_not_taken_for_the_study(config: Path, results: Path) -> None:
    manifest.write(expand("four", ["seed=9"], config), results)
    name = manifest.name_of("four", ["seed=9"])
    assert manifest.read(name, results)["overrides"] == ["seed=9"]
    assert len(manifest.plan_if_changed("four", config, results)["experiments"]) == 4


def test_what_is_current_is_found_without_hydra_and_pydantic(config: Path, results: Path) -> None:
    manifest.plan_if_changed("four", config, results)
    code = (
        "import sys; from pathlib import Path; from kvscope.plan import manifest;"
        "manifest.plan_if_changed('four', Path(sys.argv[1]), Path(sys.argv[2]));"
        "print(sorted({'hydra', 'pydantic', 'yaml', 'numpy'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, str(config), str(results)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_a_study_never_planned_has_no_manifest(results: Path) -> None:
    with pytest.raises(BadInput, match=r"manifest\.json: no such file"):
        manifest.read("four", results)


def test_every_experiment_has_its_resources(config: Path, results: Path) -> None:
    for entry in manifest.plan_if_changed("four", config, results)["experiments"]:
        needs = entry["resources"]
        assert needs.keys() == manifest.SHAPE["experiments"][0]["resources"].keys()
        assert all(isinstance(need, int) for need in needs.values())
        assert needs["walltime_s"] > needs["share_s"] > 0


def measured(entry: dict[str, Any], results: Path, seconds: float) -> None:
    """A finished run of a planned experiment, that took so long on another host."""
    directory = manifest.experiment_path(entry["id"], results).parent
    runfile.write_run(
        directory,
        {
            "experiment_id": entry["id"],
            "status": "complete",
            "timings_s": {"total": seconds},
            "files": {"experiment.yaml": runfile.file_record(directory / "experiment.yaml")},
        },
    )


def test_what_was_measured_corrects_a_walltime_but_noise_does_not(
    config: Path, results: Path
) -> None:
    first, *others = manifest.plan_if_changed("four", config, results)["experiments"]
    expected = first["resources"]["walltime_s"]
    for seconds, walltime_s in [
        (1.4 * expected, expected),
        (expected / 1.4, expected),
        (7 * expected, 7 * expected),
        (5 * expected, 7 * expected),
        (expected, expected),
    ]:
        measured(first, results, seconds)
        plan = expand("four", [], config)
        manifest.write(plan, results)
        entries = manifest.read("four", results)["experiments"]
        assert entries == [first | {"resources": entries[0]["resources"]}, *others]
        assert entries[0]["resources"]["walltime_s"] == walltime_s
        assert manifest.resources_of(plan, results)[first["id"]]["walltime_s"] == walltime_s


def test_planning_again_after_runs_changes_no_byte(config: Path, results: Path) -> None:
    for entry in manifest.plan_if_changed("four", config, results)["experiments"]:
        measured(entry, results, 1.3 * entry["resources"]["walltime_s"])
    before = times(results)
    manifest.write(expand("four", [], config), results)
    assert times(results) == before


TRACE = "prompt_tokens,output_tokens\n9,3\n"
TRACED = """
title: T
grids: [{name: g, set: {workload: trace, workload.arrival: all_at_once, workload.path: PATH}}]
"""


@pytest.fixture
def traced(config: Path) -> Path:
    """The trace of a study 'traced'."""
    path = config / "lengths" / "t.csv"
    path.write_text(TRACE)
    (config / "study" / "traced.yaml").write_text(TRACED.replace("PATH", "../lengths/t.csv"))
    return path


def test_a_changed_file_of_a_workload_makes_another_experiment(
    traced: Path, config: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = manifest.plan_if_changed("traced", config, results)
    assert written["files"] == [{"path": str(traced), "sha256": sha256_of(traced)}]
    with monkeypatch.context() as patch:
        patch.setattr(grid, "expand", _refuse_to_expand)
        os.utime(traced, ns=(0, 0))
        assert manifest.plan_if_changed("traced", config, results) == written
    traced.write_text(TRACE.replace("9", "8"))
    again = manifest.plan_if_changed("traced", config, results)
    assert again["experiments"][0]["id"] != written["experiments"][0]["id"]
    traced.unlink()
    with pytest.raises(BadInput, match=r"workload.path .*traced.yaml grid 'g'.* there is no file"):
        manifest.plan_if_changed("traced", config, results)


def test_a_trace_that_cannot_be_used_is_refused_before_anything_is_written(
    traced: Path, config: Path, results: Path
) -> None:
    traced.write_text(TRACE + "many,3\n")
    with pytest.raises(BadInput, match=r"t\.csv:3: prompt_tokens is 'many'"):
        manifest.plan_if_changed("traced", config, results)
    assert not results.exists()


def test_a_finished_run_keeps_its_experiment_when_its_file_is_named_in_another_way(
    traced: Path, config: Path, results: Path
) -> None:
    (entry,) = manifest.plan_if_changed("traced", config, results)["experiments"]
    path = manifest.experiment_path(entry["id"], results)
    shutil.copy(traced, traced.with_name("copy.csv"))
    (config / "study" / "traced.yaml").write_text(TRACED.replace("PATH", "../lengths/copy.csv"))
    assert manifest.plan_if_changed("traced", config, results)["experiments"] == [entry]
    assert "copy.csv" in path.read_text(), "it was not run, and may be"
    measured(entry, results, 9)
    content = path.read_bytes()
    (config / "study" / "traced.yaml").write_text(TRACED.replace("PATH", "../lengths/t.csv"))
    assert manifest.plan_if_changed("traced", config, results)["files"][0]["path"] == str(traced)
    assert path.read_bytes() == content
    path.write_text("damaged")  # nothing vouches for it
    manifest.plan_if_changed("four", config, results)
    manifest.write(expand("traced", [], config), results)
    assert load(path).id == entry["id"]


@pytest.mark.parametrize("name", ["../four", "..", "/etc", "a/b", "", "a\n"])
def test_a_name_that_leads_elsewhere_is_refused(name: str, config: Path, results: Path) -> None:
    for use in (
        lambda: manifest.read(name, results),
        lambda: manifest.plan_if_changed(name, config, results),
        lambda: manifest.experiment_path(name, results),
    ):
        with pytest.raises(BadInput, match="but must be a name"):
            use()
    assert not results.exists()


# A change to a sound manifest, and what is said of it.
DAMAGED: list[tuple[str, Any, str]] = [
    ("study", None, "manifest.study is None but must be text"),
    ("study", "another", "is of study 'another'"),
    ("base", "another", "is of study 'four'"),
    ("overrides", ["seed=1"], "is of study 'four'"),
    ("experiments.1.resources.gpus", -1, "gpus is -1 but must be a whole number of at least 0"),
    ("base", 3, "manifest.base is 3 but must be text or null"),
    ("varied_keys", ["a", 3], "manifest.varied_keys.1 is 3 but must be text"),
    ("overrides", {}, "manifest.overrides is {} but must be a list"),
    ("files", ["x"], "manifest.files.0 is 'x' but must be a group of keys"),
    ("files", [{"path": "x"}], "manifest.files.0 lacks the key 'sha256'"),
    ("experiments", None, "manifest.experiments is None but must be a list"),
    ("experiments.0.id", "../x", "manifest.experiments.0.id is '../x' but must be a name"),
    ("experiments.0.id", 7, "manifest.experiments.0.id is 7 but must be text"),
    ("experiments.1.varied", [], "manifest.experiments.1.varied is [] but must be a group"),
    ("experiments.1.resources", None, "manifest.experiments.1.resources is None"),
    ("experiments.1.resources.walltime_s", 1.5, "walltime_s is 1.5 but must be a whole number"),
    ("experiments.1.resources.threads", True, "threads is True but must be a whole number"),
]


@pytest.mark.parametrize(("key", "value", "complaint"), DAMAGED)
def test_a_damaged_manifest_is_refused_by_its_key_and_made_again(
    key: str, value: Any, complaint: str, config: Path, results: Path
) -> None:
    sound = manifest.plan_if_changed("four", config, results)
    damaged = json.loads(json.dumps(sound))
    *parents, name = [int(step) if step.isdecimal() else step for step in key.split(".")]
    holder = damaged
    for step in parents:
        holder = holder[step]
    holder[name] = value
    path = manifest.manifest_path("four", results)
    path.write_text(json.dumps(damaged))
    with pytest.raises(BadInput) as error:
        manifest.read("four", results)
    assert str(error.value).startswith(f"{path}: ")
    assert complaint in str(error.value)
    assert manifest.plan_if_changed("four", config, results) == sound


@pytest.mark.packages
def test_the_manifest_says_what_a_study_asks(tmp_path: Path) -> None:
    manifest.write(expand("quickstart", [], CONFIG), tmp_path)
    asked = manifest.read("quickstart", tmp_path)["compare"]
    assert asked == {"key": "cache.blocks", "base": 192, "along": []}
    assert load_study("quickstart", tmp_path).question == Question(**asked)


@pytest.mark.packages
@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lambda m: m["compare"].update(keyy=1), "keyy .* is not a key .did you mean 'key'"),
        (lambda m: m["compare"].pop("base"), "base is missing .the manifest of quickstart"),
        (lambda m: m["compare"].update(along="x"), "along"),
        (lambda m: m["figures"][0]["axes"].append({"z": "seed"}), "z .* is not a key"),
    ],
)
def test_an_edited_question_or_axis_is_named_when_the_page_is_made(
    tmp_path: Path, edit: Callable[[Any], Any], sentence: str
) -> None:
    path = manifest.write(expand("quickstart", [], CONFIG), tmp_path)
    edited = json.loads(path.read_text())
    edit(edited)
    path.write_text(json.dumps(edited))
    with pytest.raises(BadInput, match=sentence):
        load_study("quickstart", tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=5,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in nested lists and mappings."""
    items = list(value.items() if isinstance(value, dict) else enumerate(value)) if isinstance(
        value, dict | list
    ) else []  # fmt: skip
    return [path, *(p for key, item in items for p in _places(item, (*path, key)))]


@pytest.mark.slow
@given(data=st.data(), junk=JSON)
def test_any_manifest_is_read_or_refused(
    data: st.DataObject, junk: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A sound manifest, a value of which is another one, or cut short somewhere."""
    results = tmp_path_factory.getbasetemp() / "fuzz"
    if not manifest.manifest_path("batching-cpu", results).exists():
        manifest.write(expand("batching-cpu", [], CONFIG), results)
        sound = manifest.read("batching-cpu", results)
        (results / "sound.json").write_text(json.dumps(sound))
    content = json.loads((results / "sound.json").read_text())
    path = data.draw(st.sampled_from(_places(content)))
    holder = content
    for step in path[:-1]:
        holder = holder[step]
    if path:
        holder[path[-1]] = junk
    text = json.dumps(content if path else junk)
    text = text[: data.draw(st.integers(0, len(text)))] if data.draw(st.booleans()) else text
    manifest.manifest_path("batching-cpu", results).write_text(text)
    try:
        found = manifest.read("batching-cpu", results)
    except BadInput as error:
        sentence = str(error)
    else:
        sentence = ""
        assert all(e["resources"]["walltime_s"] >= 0 for e in found["experiments"])
        assert all(manifest.experiment_path(e["id"], results) for e in found["experiments"])
    assert sentence == "" or sentence.isprintable()


def test_json_holds_id_and_resolved_experiment(config: Path, results: Path) -> None:
    plan = expand("four", [], config)
    needs = manifest.resources_of(plan, results)
    for row, planned in zip(show.as_json(plan, needs), plan.experiments, strict=True):
        assert row["id"] == planned.experiment.id
        assert row["resources"] == needs[row["id"]]
        assert row["experiment"]["model"]["layers"] == 4
        assert json.loads(json.dumps(row)) == row


def test_the_table_has_a_line_for_each_experiment(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = expand("four", [], config)
    needs = {
        planned.experiment.id: {"batch": 0, "walltime_s": 1, "share_s": seconds}
        for planned, seconds in zip(plan.experiments, (40, 100, 7200, 9), strict=True)
    }
    monkeypatch.setattr(together, "machine_gib", lambda: 64.0)
    show.print_table(plan, needs)
    header, *lines, total = capsys.readouterr().out.splitlines()
    assert header.split() == ["id", "time", "seed", "batching"]
    assert [line.split()[0] for line in lines] == [p.experiment.id for p in plan.experiments]
    assert [" ".join(line.split()[1:3]) for line in lines] == ["40 s", "2 min", "2 h", "9 s"]
    assert re.fullmatch(
        r"4 experiments on device=cpu, about 2 h, 4 engines side by side in rounds, \S+ GiB: T",
        total,
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1, "1 s"),
        (89, "89 s"),
        (90, "2 min"),
        (240, "4 min"),
        (5399, "90 min"),
        (5400, "2 h"),
        (172_800, "2 days"),
        (10**9, "11,574 days"),
    ],
)
def test_a_duration_has_the_unit_that_suits_it(seconds: int, text: str) -> None:
    assert rough_duration(seconds) == text
