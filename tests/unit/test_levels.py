"""Names that a study gives to values of its keys."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kvscope.base.errors import BadInput
from kvscope.plan import levels
from kvscope.plan import named as naming
from kvscope.plan.grid import Plan, expand
from kvscope.plan.question import Question
from kvscope.plan.traits import in_tokens, setting_words
from kvscope.report.axes import rows, x_words
from kvscope.report.data import StudyData
from kvscope.report.findings import headline
from kvscope.report.words import NBSP

from .test_report_findings import run, study

BLOCKS = "cache.blocks"
GRID = {
    "name": "g",
    "set": {"model": "tiny-llama", "cache.block_size": 32},
    "linked": [{"workload": "fixed"}, {"workload": "uniform"}],
    "product": {BLOCKS: [192, 48]},
}
NAMES = {192: "all of the cache", 48: "a quarter of the cache"}


def plan(directory: Path, text: str) -> Plan:
    (directory / "study").mkdir(exist_ok=True)
    content = yaml.safe_dump({"title": "T", "grids": [GRID]})
    (directory / "study" / "mine.yaml").write_text(f"{content}{text}")
    return expand("mine", [], directory)


@pytest.mark.parametrize(
    "text",
    [
        "levels: {cache.blocks: {192: all of the cache, 48: a quarter of the cache}}",
        'levels: {cache.blocks: {"192": all of the cache, "48": a quarter of the cache}}',
    ],
)
def test_levels_are_planned_and_change_no_id(tmp_path: Path, text: str) -> None:
    planned = plan(tmp_path, text)
    assert planned.levels == {BLOCKS: NAMES}
    assert [point.experiment.id for point in planned.experiments] == [
        point.experiment.id for point in plan(tmp_path, "").experiments
    ]


def test_a_linked_point_is_named_by_a_value(tmp_path: Path) -> None:
    planned = plan(tmp_path, "levels: {workload: {uniform: mixed lengths}}")
    assert planned.levels == {"workload": {"uniform": "mixed lengths"}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("levels: {cache.blocks: {7: few}}", "levels.cache.blocks has 7 .*: 192, 48"),
        (
            "levels: {seed: {1: a}}",
            "levels has seed .* a key that varies .*: workload, cache.blocks",
        ),
        ("levels: {model: {tiny-llama: a}}", "levels has model .* a key that varies"),
        ("levels: {cache.blokcs: {192: a}}", "cache.blokcs"),
        ("levels: {cache.blocks: {192: ''}}", "a name of 1 to 60 letters, without spaces"),
        ("levels: {cache.blocks: {192: ' all'}}", "a name of 1 to 60 letters, without spaces"),
        ("levels: {cache.blocks: {192: a, 48: a}}", "has 'a' .* for 2 values"),
        ("levels: {cache.blocks: {'1_92': a}}", "levels.cache.blocks has '1_92'"),
        ("levels: {cache.blocks: {}}", "levels"),
        ("levels: {cache.blocks: {192: [a]}}", "levels"),
        ("levels: {cache.blocks: all}", "levels"),
    ],
)
def test_a_level_of_nothing_is_refused_in_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said) as caught:
        plan(tmp_path, text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("names", [{"true": "a"}, {1: "a", 0: "b"}])
def test_yes_and_no_cannot_be_named(names: dict[Any, str]) -> None:
    with pytest.raises(BadInput, match="values are true, false, but must name numbers or texts"):
        levels.check({"exclusive": names}, {"exclusive": [True, False]}, "mine")


@given(st.one_of(st.integers(), st.floats(allow_nan=False), st.text()), st.text(min_size=1))
def test_a_named_value_is_the_value(value: float | str, words: str) -> None:
    named = naming.name(value, words)
    assert (named, hash(named), type(value)(named)) == (value, hash(value), value)
    assert naming.name_of(named) == words == setting_words(BLOCKS, named)
    assert naming.name_of(naming.name(value, None)) is None


def of_levels(*counts: int) -> StudyData:
    runs = [
        run({BLOCKS: naming.name(count, NAMES.get(count))}, (value - 1, value, value + 1))
        for count, value in zip(counts, (100, 74, 50), strict=False)
    ]
    return study(*runs)


def test_the_headline_has_the_names() -> None:
    said = headline(of_levels(192, 48)).sentence.replace(NBSP, " ")
    assert said.startswith("A quarter of the cache instead of all of the cache: 26 % (± ")
    asked = replace(of_levels(192, 48), question=Question(key=BLOCKS, base=192))
    assert headline(asked).sentence.replace(NBSP, " ") == said


def test_a_level_without_a_name_has_its_key() -> None:
    said = headline(of_levels(192, 96)).sentence
    assert said.startswith("KV cache 96 blocks instead of all of the cache: ")


def test_axes_and_labels_have_the_names_in_the_plan_s_order() -> None:
    data = of_levels(192, 48)
    (row,) = rows(data, lambda _: True, ())
    assert not row.ordered
    assert [x_words(value) for value in row.values] == [*NAMES.values()]
    assert [*data.labels.values()] == [*NAMES.values()]


def test_a_name_stays_where_blocks_are_told_in_tokens() -> None:
    two = [{BLOCKS: naming.name(192, "all"), "cache.block_size": size} for size in (16, 32)]
    result = in_tokens(two)
    assert [row["cache.tokens"] for row in result] == [3072, 6144]
    assert {naming.name_of(row["cache.tokens"]) for row in result} == {"all"}
