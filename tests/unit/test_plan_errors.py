"""Errors are one sentence: the key, the value, the allowed values, where to fix it."""

import re
import shutil
from pathlib import Path

import pytest

from kvscope.base.errors import BadInput
from kvscope.plan.grid import expand

CONFIG = Path(__file__).parents[2] / "config"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the configuration, in the working directory as a user's is."""
    shutil.copytree(CONFIG, tmp_path / "config")
    monkeypatch.chdir(tmp_path)
    return Path("config")


def refusal(study: str | None, overrides: list[str], config: Path) -> str:
    """The sentence that this is refused with."""
    with pytest.raises(BadInput) as error:
        expand(study, overrides, config)
    sentence = str(error.value)
    assert "\n" not in sentence
    assert not re.search(r"\.\s+[A-Z]", sentence), "more than one sentence"
    assert "Traceback" not in sentence
    return sentence


# An override, and what the sentence must hold.
COMMAND_LINE = [
    ("seed", ["'seed'", "key=value"]),
    ("seed=", ["seed is ''", "a whole number"]),
    ("=3", ["'=3'", "cannot be read"]),
    ("seed=[1", ["'seed=[1'", "cannot be read"]),
    ("seed=[1,2]", ["seed is [1, 2]", "a whole number"]),
    ("+seed=3", ["'+seed=3'", "adds, deletes or moves"]),
    ("~seed", ["'~seed'", "adds, deletes or moves"]),
    ("model@here=tiny-opt", ["adds, deletes or moves"]),
    ("seed=interval(1,2)", ["no fixed list of values"]),
    ("seed=shuffle(1,2)", ["no fixed list of values"]),
    ("seed=range(3,3)", ["no value at all"]),
    ("seed=range(0,1000000000)", ["over 10,000 values"]),
    ("model=glob(huge-*)", ["no value at all"]),
    ("sed=3", ["sed (the command line) is not a key (did you mean 'seed'?)"]),
    ("workloads.theta=1", ["workloads.theta", "did you mean 'workload.theta'?"]),
    ("workload.num_request=1", ["did you mean 'workload.num_requests'?", "workload.prompt_tokens"]),
    ("workload.theta=0.5", ["workload.theta (the command line) is not a key of workload=fixed;"]),
    ("seed.x=1", ["seed.x (the command line) is not a key"]),
    ("hydra.run.dir=x", ["hydra.run.dir (the command line) is not a key"]),
    ("workload=zip", ["workload is 'zip' (the command line) (did you mean 'zipf'?)", "fixed,"]),
    (
        "workload=3",
        ["workload is 3", "agents, coding-agent, conversation, fixed, mooncake, multi-turn"],
    ),
    (
        "workload={name:zipf}",
        ["workload is {'name': 'zipf'}", "one of agents, coding-agent"],
    ),
    ("workload.name=zipf", ["write workload=zipf"]),
    ("batching=decode_first", ["batching is 'decode_first'", "one of chunked, mixed, prefill"]),
    (
        "overflow=drop",
        [
            "overflow is 'drop' (the command line)",
            "recompute, swap",
        ],
    ),
    ("overflow=swap overflow.host_memory=paged", ["overflow.host_memory is 'paged'", "'pinned'"]),
    ("overflow=swap overflow.copies=all", ["overflow.copies is 'all'", "'per_block' or"]),
    ("overflow=swap overflow.host_gib=0.0000001", ["overflow.host_gib (1e-07)", "262,144 bytes"]),
    ("overflow=swap overflow.host_blocks=0", ["overflow.host_blocks is 0", "at least 1"]),
    ("overflow.host_blocks=2", ["overflow.host_blocks (the command line) is not a key of"]),
    ("cache.watermark=1", ["cache.watermark is 1", "less than 1"]),
    (
        "cache.layout=by_block",
        ["cache.layout (by_block) must be one of by_layer", "paged"],
    ),
    (
        "cache.layout=by_head",
        ["cache.layout is 'by_head'", "'by_layer', 'by_k_and_v' or 'by_block'"],
    ),
    (
        "cache.block_size=16",
        ["cache.block_size (16)", "multiple of 32", "attention paged or"],
    ),
    (
        "device=cuda engine.attention=paged",
        ["engine.attention (paged) must be vllm or"],
    ),
    ("workload.timeout_s=0", ["workload.timeout_s is 0", "more than 0"]),
    ("device=tpu", ["device is 'tpu'", "one of cpu, cuda, dry"]),
    ("tracing=some", ["tracing is 'some'", "must be one of", "none"]),
    ("engine=big", ["engine is 'big' (the command line) but must be a group of keys"]),
    ("engine.max_model_len=long", ["engine.max_model_len is 'long'", "a whole number"]),
    ("model.tie_word_embeddings=1", ["must be true or false"]),
    ("model.name=My_Model", ["lower-case letters"]),
    ("seed=${nope}", ["seed is '${nope}' (the command line) but nope is not a key"]),
    ("seed=${engine}", ["seed is '${engine}'", "engine is a group of keys, not a value"]),
    ("seed=${repeats} repeats=${seed}", ["repeats is '${seed}'", "but refers back to seed"]),
    ("seed='${2*model.name}'", ["model.name is 'tiny-llama', which is no number"]),
    ("seed='${7/2}'", ["seed is 3.5 (the command line) but must be a whole number"]),
    ("seed='${1/(repeats-3)}'", ["seed is '${1/(repeats-3)}'", "but divides by 0"]),
    ("seed='${10*1e12}'", ["comes to more than 1e+12"]),
    ("seed='${2**3}'", ["must be made of keys, numbers, + - * / ( ) and ceil, floor, min, max"]),
    ("model.name=${oc.env:USER}", ["model.name is '${oc.env:USER}'", "must be made of keys"]),
    ("workload=trace", ["workload.path is null (config/workload/trace.yaml) but must name a tra"]),
    ("workload=trace", ["github.com/kvcache-ai/Mooncake", "set workload.path=FILE"]),
    ("workload=sharegpt", ["ShareGPT_V3_unfiltered_cleaned_split.json", "set workload.path=FILE"]),
    ("workload=sharegpt", ["Hugging Face dataset anon8231489123/ShareGPT_Vicuna_unfiltered"]),
    ("workload=trace workload.path=3", ["workload.path is 3 (the command line) but must be text"]),
    ("workload=trace workload.path=none.csv", ["the command line", "there is no file 'none.csv'"]),
    ("workload=trace workload.path=config", ["'config'", "'config' is no file"]),
    ("workload.path=x.csv", ["workload.path (the command line) is not a key of workload=fixed"]),
    ("seed=" + "9" * 5000, ["cannot be read"]),
    ("seed=" + "[" * 3000, ["cannot be read"]),
    ("seed=range(1,2,0)", ["'seed=range(1,2,0)'", "has no values"]),
    ("seed=\udcff", ["cannot be read"]),
    ("workload=../fixed", ["workload (the command line) is '../fixed' but must be a name"]),
    ("../x=fixed", ["'../x=fixed'", "cannot be read"]),
    ("workload.num_requests=1000000000", ["but must be at most 1000000"]),
    ("workload.prompt_tokens=16777217", ["but must be at most 16777216"]),
    ("engine.max_model_len=1000000000000", ["but must be at most 16777216"]),
    ("workload.num_requests=1e6 workload.prompt_tokens=990", ["1,022,000,000", "1,000,000,000"]),
    ("workload=zipf workload.num_requests=1e6 workload.max_tokens=1001", ["1,001,000,000 tokens"]),
    ("repeats=1001", ["repeats is 1001", "at most 1000"]),
    ("warmup=1001", ["warmup is 1001", "at most 1000"]),
    ("device.threads=5000", ["device.threads is 5000", "at most 4096"]),
    ("cache.blocks=1000000001", ["cache.blocks is 1000000001", "at most 1000000000"]),
    ("model.layers=1e300", ["model.layers is 1e+300", "at most 1000000000"]),
]


@pytest.mark.parametrize(("override", "parts"), COMMAND_LINE, ids=lambda value: str(value)[:60])
def test_overrides(override: str, parts: list[str], config: Path) -> None:
    sentence = refusal(None, override.split(" "), config)
    assert [part for part in parts if part not in sentence] == [], sentence


def test_a_key_given_twice(config: Path) -> None:
    assert "seed is given twice" in refusal(None, ["seed=1", "seed=2"], config)


def test_too_many_experiments(config: Path) -> None:
    sentence = refusal(None, ["seed=range(0,101)", "repeats=range(1,101)"], config)
    assert "10,100 experiments, but at most 10,000" in sentence


GRID = "title: T\ngrids:\n  - name: one\n    "

# A study file, and what the sentence must hold.
STUDIES = [
    ("title: T", ["grids is missing (config/study/mine.yaml)"]),
    ("title: T\ngrids: []", ["grids is [] (config/study/mine.yaml) but must be one or more"]),
    ("grids: [{name: a}]", ["title is missing"]),
    ("- a\n- b", ["config/study/mine.yaml: must hold 'key: value' lines"]),
    ("title: [T", ["config/study/mine.yaml:", "not valid YAML"]),
    ("title: T\ntitle: U\ngrids: [{name: a}]", ["mine.yaml:2", "key 'title' is given twice"]),
    ("title: \t@", ["config/study/mine.yaml:1", "not valid YAML"]),
    ("title: T\nfigure: [a]\ngrids: [{name: a}]", ["figure", "did you mean 'figures'?"]),
    (
        "title: T\nfigures: [swapping, swaping]\ngrids: [{name: a}]",
        [
            "figures.1.name is 'swaping' (config/study/mine.yaml) but must be one of ",
            ", swapping,",
        ],
    ),
    ("title: T\nfigures: swapping\ngrids: [{name: a}]", ["figures is 'swapping'", "a list"]),
    (
        "title: T\nfigures: [{throughput: {y: seed}}]\ngrids: [{name: a}]",
        ["figures.0.axes.0.y", "is not a key", "figures.0.axes.0.colour"],
    ),
    (
        "title: T\nfigures: [{throughput: {x: sed}}]\ngrids: [{name: a}]",
        ["sed (study mine, figure throughput) is not a key (did you mean 'seed'?)"],
    ),
    (
        "title: T\ncompare: {key: sed, base: 1}\ngrids: [{name: a}]",
        ["sed (study mine, compare) is not a key (did you mean 'seed'?)"],
    ),
    (
        "title: T\ncompare: {key: seed, base: 3}\n" + GRID[9:] + "product: {seed: [1, 2]}",
        ["compare.base is 3 (study mine) but must be a value that a grid gives seed: 1, 2"],
    ),
    ("title: T\ncompare: seed\ngrids: [{name: a}]", ["compare is 'seed' (config/study/mine.yaml)"]),
    (GRID + "prodcut: {seed: [1]}", ["grids.0.prodcut", "did you mean 'grids.0.product'?"]),
    (GRID + "product: {seed: 1}", ["grids.0.product.seed is 1", "must be a list"]),
    (GRID + "product: {seed: []}", ["grids.0.product.seed is []"]),
    (GRID + "product: {seed: [[1]]}", ["a single value"]),
    (GRID + "linked: {seed: 1}", ["grids.0.linked is {'seed': 1}", "must be a list"]),
    (GRID + "set: {seed: 1}\n    product: {seed: [1]}", ["seed is set twice", "grid 'one'"]),
    (GRID + "set: {seed: many}", ["seed is 'many' (config/study/mine.yaml grid 'one')"]),
    (GRID + "set: {sed: 1}", ["sed (config/study/mine.yaml grid 'one')", "'seed'"]),
    (GRID + "set: {model: tiny}", ["model is 'tiny' (config/study/mine.yaml grid 'one')"]),
    (GRID + "exclude: [{sed: 1}]", ["grid 'one', exclude", "did you mean 'seed'?"]),
    (GRID + "exclude: [{seed: 1234}]", ["no experiments left"]),
    (GRID + "set: {cache.blocks: 8}", ["change cache.blocks (config/study/mine.yaml grid 'one')"]),
]


@pytest.mark.parametrize(("text", "parts"), STUDIES, ids=lambda value: str(value)[-40:])
def test_study_files(text: str, parts: list[str], config: Path) -> None:
    (config / "study" / "mine.yaml").write_text(text)
    sentence = refusal("mine", [], config)
    assert [part for part in parts if part not in sentence] == [], sentence


def test_a_study_may_not_have_the_name_reserved_for_plans_without_a_study(config: Path) -> None:
    (config / "study" / "adhoc.yaml").write_text("title: T\ngrids: [{name: a}]")
    sentence = refusal("adhoc", [], config)
    assert "cannot be called 'adhoc' (config/study/adhoc.yaml)" in sentence


def test_an_unknown_study_is_refused_with_the_known_ones(config: Path) -> None:
    sentence = refusal("quikstart", [], config)
    assert "did you mean 'quickstart'?" in sentence
    assert "config/study" in sentence


@pytest.mark.parametrize("name", ["", "..", "../config", "/etc", "quickstart.yaml"])
def test_a_study_is_named_without_its_path(name: str, config: Path) -> None:
    assert f"study is {name!r}" in refusal(name, [], config)


# A file of the configuration, its broken text, and what the sentence must hold.
FILES = [
    ("workload/fixed.yaml", "name: [fixed", ["config/workload/fixed.yaml:", "not valid YAML"]),
    ("workload/fixed.yaml", "just words", ["config/workload/fixed.yaml", "'key: value'"]),
    ("workload/fixed.yaml", "name: fixed", ["is missing (config/workload/fixed.yaml)"]),
    (
        "workload/fixed.yaml",
        "name: fxd",
        ["workload.name is 'fxd'", "(config/workload/fixed.yaml)"],
    ),
    ("cache/default.yaml", "block_size: 32\nblocks: x", ["'x' (config/cache/default.yaml)"]),
    ("config.yaml", "defaults: 3", ["config/config.yaml", "defaults must be a list"]),
    ("config.yaml", "defaults: [{model: big}]", ["model is 'big' (config/config.yaml, defaults)"]),
    ("config.yaml", "defaults: [{modle: big}]", ["modle", "config/config.yaml, defaults"]),
    ("config.yaml", "seed: 1", ["is missing (config/config.yaml)"]),
]


@pytest.mark.parametrize(("name", "text", "parts"), FILES, ids=lambda value: str(value)[:40])
def test_files_of_the_configuration(name: str, text: str, parts: list[str], config: Path) -> None:
    (config / name).write_text(text)
    sentence = refusal(None, [], config)
    assert [part for part in parts if part not in sentence] == [], sentence


def test_an_unknown_top_level_key_names_the_file(config: Path) -> None:
    path = config / "config.yaml"
    path.write_text(path.read_text() + "sed: 3\n")
    assert "sed (config/config.yaml) is not a key" in refusal(None, [], config)
