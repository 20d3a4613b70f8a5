"""The schema of studies: as the code has it, and of one mind with the planner."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from kvscope.base.errors import BadInput
from kvscope.base.files import read_json
from kvscope.plan import documents, layers, new, schema
from kvscope.plan.complaints import all_keys
from kvscope.plan.composition import Composer
from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand
from kvscope.plan.point import Point
from kvscope.plan.registry import KINDS
from kvscope.plan.study import Grid

CONFIG = Path(__file__).parents[2] / "config"
README = (CONFIG / "README.md").read_text(encoding="utf-8")
STUDIES = layers.options(CONFIG, "study")
SCHEMA = schema.study_schema(shipped=True)
VALIDATOR = Draft7Validator(SCHEMA)
KEYS = SCHEMA["$defs"]["settings"]["properties"]


def study(**grid: Any) -> dict[str, Any]:
    return {"title": "T", "grids": [{"name": "one", **grid}]}


def sound(value: Any) -> bool:
    """Whether an editor would mark nothing."""
    return bool(VALIDATOR.is_valid(value))


def planned(value: Any, directory: Path) -> bool:
    """Whether the planner takes it."""
    path = directory / "study" / "mine.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(documents.dump(value))
    try:
        expand("mine", [], directory)
    except BadInput:
        return False
    return True


def test_it_is_a_schema() -> None:
    Draft7Validator.check_schema(SCHEMA)


def test_the_file_is_what_the_code_generates() -> None:
    assert read_json(layers.STUDY_SCHEMA) == SCHEMA, (
        f"make it again: python -m kvscope.plan.schema > {layers.STUDY_SCHEMA}"
    )
    assert layers.STUDY_SCHEMA.read_text() == schema.text(shipped=True)


@pytest.mark.parametrize("path", STUDIES.values(), ids=STUDIES)
def test_every_installed_study_is_valid_and_names_the_schema(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert first == schema.MODELINE or CONFIG not in path.parents
    assert (path.parent / first.partition("$schema=")[2]).resolve() == layers.STUDY_SCHEMA
    assert [error.message for error in VALIDATOR.iter_errors(documents.load(path))] == []


def test_the_study_to_start_from_is_valid(tmp_path: Path) -> None:
    path = new.create_study("mine", tmp_path)
    assert path.read_text().splitlines()[0] == schema.MODELINE
    assert sound(documents.load(path))


GOOD = [
    {"set": {"model": "a-model-of-mine"}},
    {"set": {"workload.rate_per_s": 3, "workload.arrival": "poisson"}},
    {"set": {"engine.max_num_seqs": "${engine.max_model_len}"}},
    {"set": {"cache.blocks": None, "cache.gib": 0.5}},
    {"set": {"overflow": "long_swap", "overflow.threshold_tokens": 150}},
    {"product": {"batching.of_mine": ["a", 1]}},
    {"linked": [{"seed": 1}, {"seed": 2}]},
    {"linked": [[{"seed": 1}], [{"repeats": 2}, {"repeats": 3}]]},
    {"set": {"model": "tiny-llama", "model.name": "half-as-deep", "model.layers": 2}},
    {"exclude": [{"workload.theta": None}, {"workload.name": "zipf"}]},
]


@pytest.mark.parametrize("grid", GOOD, ids=str)
def test_allowed_contents_of_a_study_are_valid(grid: dict[str, Any]) -> None:
    assert sound(study(**grid))


def test_keys_of_options_are_those_of_kvscopes_own() -> None:
    offered = {key for key in KEYS if key.partition(".")[0] in KINDS and "." in key}
    own = {"victim", "host_memory", "copies", "host_gib", "host_blocks"}
    assert {"batching.chunk_tokens", "device.threads", "workload.theta"} < offered
    assert {key for key in offered if key.startswith("overflow.")} == {f"overflow.{k}" for k in own}


BAD = [
    {"title": "T"},
    {"grids": [{"name": "one"}]},
    {"title": 3, "grids": [{"name": "one"}]},
    {"title": "T", "grids": []},
    {"title": "T", "grids": [{}]},
    {**study(), "figure": ["a"]},
    {**study(), "figures": "a"},
    study(prodcut={"seed": [1]}),
    study(set={"sed": 1}),
    study(set={"workload.theta": 1}),
    study(set={"workload.name": "zipf"}),
    study(set={"batching.name": "mixed"}),
    study(set={"engine": 3}),
    study(set={"model": 3}),
    study(set={"seed": [1]}),
    study(set={"seed": "many"}),
    study(set={"seed": None}),
    study(set={"seed": 2**32}),
    study(set={"cache.layout": "by_head"}),
    study(set={"overflow": "swap", "overflow.copies": "all"}),
    study(set={"overflow.of_mine": [1]}),
    study(product={"seed": 1}),
    study(product={"seed": []}),
    study(product={"sed": [1]}),
    study(product={"overflow.of_mine": 1}),
    study(linked={"seed": 1}),
    study(linked=[{}]),
    study(linked=[[]]),
    study(linked=[{"sed": 1}]),
    study(exclude=[{"sed": 1}]),
    study(exclude=[{}]),
]


@pytest.mark.parametrize("value", BAD, ids=str)
def test_mistakes_are_marked_that_the_planner_refuses(value: Any, tmp_path: Path) -> None:
    assert not sound(value)
    assert not planned(value, tmp_path)


@pytest.mark.parametrize("key", KEYS)
def test_no_key_takes_any_value(key: str, tmp_path: Path) -> None:
    wrong = study(set={key: {"a": 1}})
    assert not sound(wrong)
    assert not planned(wrong, tmp_path)
    typed = SCHEMA["$defs"][key]["anyOf"]
    if {"type": "string"} not in typed:
        assert not sound(study(set={key: "no such value!"}))
    if key.partition(".")[0] not in KINDS and "." in key:
        assert not sound(study(set={f"{key}x": 1}))


# Every key that an option's file sets and a study can: its group, the option, the key, its value.
SET = [
    (group, option, f"{group}.{key}", value)
    for group in ("model", "device", "workload", "batching", "overflow", "cache")
    for option, path in layers.options(CONFIG, group).items()
    for key, value in documents.load_mapping(path).items()
    if key != "name" and not isinstance(value, dict | list)
]


def near(value: Any) -> list[Any]:
    """The value and others, of which the planner takes some."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return [value, None, 1, 0.5, "text", "${seed}", True, False]
    return [value, float(value), value + 1, value * 2, value / 3, 0, 1, -1, 0.5, None, str(value)]


COMPOSER = Composer(CONFIG)


def possible(chosen: dict[str, Any]) -> bool:
    """Whether the planner makes an experiment of these settings."""
    point = Point(COMPOSER, Grid("here", "here", CONFIG, (), ()), chosen, {})
    try:
        point.experiment(point.config())
    except BadInput:
        return False
    return True


@pytest.mark.thorough
@pytest.mark.slow
@given(st.sampled_from(SET), st.data())
def test_studies_that_the_planner_accepts_are_valid(
    chosen: tuple[str, str, str, Any], data: st.DataObject
) -> None:
    group, option, key, default = chosen
    value = data.draw(st.sampled_from(near(default)))
    taken = possible({group: option, key: value})
    event(f"taken: {taken}")
    assert not taken or sound(study(set={group: option}, product={key: [value]}))


@pytest.mark.packages
def test_the_readme_has_a_row_for_every_key_of_an_option() -> None:
    rows = [line.split("|")[1] for line in README.splitlines() if line.startswith("| `")]
    documented = {word for row in rows for word in row.split("`")[1::2]}
    assert {key for key in documented if "." in key} <= set(all_keys(Experiment))
    own = {key for key in KEYS if key.partition(".")[0] in KINDS and not key.endswith(".name")}
    assert own - documented == set()
