"""Grids: from a study and the command line to the list of experiments."""

import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.base.errors import BadInput
from kvscope.plan import layers
from kvscope.plan.composition import Composer
from kvscope.plan.grid import Plan, expand
from kvscope.plan.manifest import split_study
from kvscope.workload.trace import Trace

CONFIG = Path(__file__).parents[2] / "config"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A copy of the configuration, to write studies in."""
    return Path(shutil.copytree(CONFIG, tmp_path / "config"))


def with_study(config: Path, grids: str, *overrides: str) -> Plan:
    """Expand a study of these grids."""
    text = "title: A test\ngrids:\n" + dedent(grids)
    (config / "study" / "test.yaml").write_text(text)
    return expand("test", list(overrides), config)


def of(plan: Plan, *keys: str) -> list[tuple[object, ...]]:
    """The values of these varied keys, an experiment a row."""
    return [tuple(planned.varied[key] for key in keys) for planned in plan.experiments]


def test_without_study_and_overrides_there_is_one_experiment_the_defaults() -> None:
    (planned,) = expand(None, [], CONFIG).experiments
    assert planned.experiment.slug == "tiny-llama-fixed16-mixed-recompute-b256x32"
    assert planned.varied == {}
    assert planned.label == planned.experiment.slug


def studies() -> list[Any]:
    """Studies, also of installed packages; the quickstart needs several packages."""
    marks = {"quickstart": [pytest.mark.packages]}
    names = sorted(layers.options(CONFIG, "study"))
    return [pytest.param(name, marks=marks.get(name, [])) for name in names]


@pytest.mark.thorough
@pytest.mark.parametrize("study", studies())
def test_every_shipped_study_can_be_planned(study: str) -> None:
    plan = expand(study, [], CONFIG)
    assert len(plan.experiments) > 1
    assert len({planned.label for planned in plan.experiments}) == len(plan.experiments)


@pytest.mark.thorough
@pytest.mark.slow
def test_every_option_of_every_group_can_be_planned(tmp_path: Path) -> None:
    (tmp_path / "x.csv").touch()
    needed = {name: [f"workload.path='{tmp_path}/x.csv'"] for name in ("trace", "sharegpt")}
    latent = ["cache.block_size=16"]
    needed |= {"tiny-mla": latent, "deepseek-v2-lite": latent}
    needed |= {"jamba-v0.1": ["cache.block_size=160"]}
    for group, options in Composer(CONFIG).groups.items():
        for option in options:
            expand(None, [f"{group}={option}", *needed.get(option, [])], CONFIG)


@pytest.mark.parametrize(
    ("override", "seeds"),
    [
        ("seed=8,16", [8, 16]),
        ("seed=range(1,4)", [1, 2, 3]),
        ("seed=range(1,8,3)", [1, 4, 7]),
        ("seed=choice(5,2)", [5, 2]),
        ("seed=sort(5,2)", [2, 5]),
    ],
)
def test_the_command_line_is_in_hydras_grammar(override: str, seeds: list[int]) -> None:
    plan = expand(None, [override], CONFIG)
    assert [planned.experiment.seed for planned in plan.experiments] == seeds
    assert plan.varied_keys == ("seed",)


def test_a_glob_stands_for_options_of_a_group() -> None:
    plan = expand(None, ["model=glob(opt-*)"], CONFIG)
    files = (CONFIG / "model").glob("opt-*.yaml")
    assert of(plan, "model") == sorted((path.stem,) for path in files)


def test_quotes_keep_text_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a,b.csv").touch()
    plan = expand(None, ["workload=trace", "workload.path='a,b.csv'"], CONFIG)
    workload = plan.experiments[0].experiment.workload
    assert isinstance(workload, Trace)
    assert workload.path == "a,b.csv"


def test_axes_are_multiplied_and_the_last_is_fastest(config: Path) -> None:
    plan = with_study(
        config,
        """
        - name: g
          linked:
            - {workload: fixed, workload.num_requests: 4}
            - {workload: zipf, workload.theta: 0.5}
          product: {cache.blocks: [64, 256], seed: [1, 2]}
        """,
    )
    assert of(plan, "workload", "cache.blocks", "seed") == [
        (w, b, s) for w in ("fixed", "zipf") for b in (64, 256) for s in (1, 2)
    ]


def test_several_linked_blocks_are_axes_of_their_own(config: Path) -> None:
    plan = with_study(
        config,
        """
        - name: g
          linked:
            - [{seed: 1, repeats: 1}, {seed: 2, repeats: 2}]
            - [{warmup: 0}, {warmup: 1}]
        """,
    )
    rows = of(plan, "seed", "repeats", "warmup")
    assert rows == [(1, 1, 0), (1, 1, 1), (2, 2, 0), (2, 2, 1)]


@pytest.mark.slow
@settings(max_examples=15)  # Hydra's composition takes its time
@given(
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    excluded=st.integers(0, 3),
)
def test_a_grid_is_the_product_without_the_exclusions(
    counts: list[int], excluded: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    config = Path(shutil.copytree(CONFIG, tmp_path_factory.mktemp("grid") / "config"))
    keys = ["repeats", "seed", "warmup"][: len(counts)]
    product = ", ".join(f"{k}: {list(range(1, n + 1))}" for k, n in zip(keys, counts, strict=True))
    grids = f"- {{name: g, product: {{{product}}}, exclude: [{{repeats: {excluded}}}]}}"
    total = len([r for r in range(1, counts[0] + 1) if r != excluded])
    for count in counts[1:]:
        total *= count
    if total:
        assert len(with_study(config, grids).experiments) == total
    else:
        with pytest.raises(BadInput, match="no experiments left"):
            with_study(config, grids)


def test_an_exclusion_matches_defaults_and_options_too(config: Path) -> None:
    grids = """
        - name: g
          product: {workload: [fixed, zipf], batching: [mixed, chunked]}
          exclude:
            - {workload: fixed, batching: chunked, cache.blocks: 256}
            - {workload.theta: 0.6, batching: mixed}
        """
    plan = with_study(config, grids)
    assert of(plan, "workload", "batching") == [("fixed", "mixed"), ("zipf", "chunked")]


def test_an_excluded_combination_may_be_impossible(config: Path) -> None:
    plan = with_study(
        config,
        """
        - name: g
          product: {cache.blocks: [1, 256]}
          exclude: [{cache.blocks: 1}]
        """,
    )
    assert [planned.experiment.cache.blocks for planned in plan.experiments] == [256]


TWO_GRIDS = """
    - name: a
      set: {cache.blocks: 64}
      product: {seed: [1, 2]}
    - name: b
      linked: [{seed: 3, workload.num_requests: 4}, {seed: 4, workload.num_requests: 8}]
    """


def test_the_command_line_replaces_a_key_in_every_grid(config: Path) -> None:
    plan = with_study(config, TWO_GRIDS, "seed=7", "cache.blocks=128")
    results = [p.experiment for p in plan.experiments]
    assert {(e.seed, e.cache.blocks) for e in results} == {(7, 128)}
    assert of(plan, "workload.num_requests") == [(16,), (4,), (8,)]


def test_the_same_experiment_of_two_grids_is_planned_once(config: Path) -> None:
    grids = """
        - {name: a, product: {seed: [1, 2]}}
        - {name: b, product: {seed: [2, 3]}}
        """
    assert of(with_study(config, grids), "seed") == [(1,), (2,), (3,)]


def test_labels_name_varied_settings(config: Path) -> None:
    plan = with_study(
        config,
        """
        - name: g
          set: {cache.block_size: 32}
          linked: [{workload: fixed, workload.prompt_tokens: 64}, {workload: zipf}]
          product: {cache.blocks: [64]}
        - {name: h, set: {workload: zipf, cache.blocks: 256}}
        """,
    )
    labels = [planned.label for planned in plan.experiments]
    assert labels == [
        "fixed, KV cache 64 blocks",
        "zipf, KV cache 64 blocks",
        "zipf, KV cache 256 blocks",
    ]
    assert plan.varied_keys == ("workload", "cache.blocks")


def test_the_size_of_the_cache_is_what_the_last_layer_says(config: Path) -> None:
    grids = "- {name: g, set: {cache.gib: 0.05}, product: {seed: [1, 2]}}"
    assert {p.experiment.cache.blocks for p in with_study(config, grids).experiments} == {None}
    again = with_study(config, grids, "cache.blocks=99")
    assert {(p.experiment.cache.blocks, p.experiment.cache.gib) for p in again.experiments} == {
        (99, None)
    }


def test_both_sizes_of_the_cache_in_one_layer_are_refused(config: Path) -> None:
    with pytest.raises(BadInput, match="exactly one of"):
        with_study(config, "- {name: g, set: {cache.gib: 0.05, cache.blocks: 64}}")


def test_a_value_may_name_another_key(config: Path) -> None:
    plan = with_study(config, "- {name: g, set: {workload.num_requests: '${engine.max_num_seqs}'}}")
    assert plan.experiments[0].experiment.workload.model_dump()["num_requests"] == 64


def test_a_new_model_is_a_new_file(config: Path) -> None:
    text = (config / "model" / "tiny-llama.yaml").read_text()
    narrow = text.replace("tiny-llama", "tiny-thin").replace("layers: 4", "layers: 1")
    (config / "model" / "tiny-thin.yaml").write_text(narrow)
    (planned,) = expand(None, ["model=tiny-thin"], config).experiments
    assert planned.experiment.kv_bytes_per_token == 2048


def test_an_option_may_reach_beyond_its_group(config: Path) -> None:
    """Hydra's packages work as documented, though kvscope's own options need none."""
    option = "# @package _global_\nengine: {max_num_seqs: 8}\nbatching: {name: mixed}\n"
    (config / "batching" / "narrow.yaml").write_text(option)
    plan = expand(None, ["batching=narrow", "model=tiny-gqa"], config)
    experiment = plan.experiments[0].experiment
    assert experiment.engine.max_num_seqs == 8
    assert experiment.model.name == "tiny-gqa"


def test_composing_by_groups_equals_hydras_composition() -> None:
    composer = Composer(CONFIG)
    for model in ("tiny-gqa", "opt-13b"):
        for workload in ("zipf", "trace"):
            choices = (("model", model), ("workload", workload))
            assert composer.compose(choices) == composer._compose(choices)


def test_study_is_parted_from_the_overrides() -> None:
    assert split_study(["seed=1", "study=quickstart"]) == ("quickstart", ["seed=1"])
    assert split_study(["seed=1"]) == (None, ["seed=1"])
    with pytest.raises(BadInput, match="given 2 times"):
        split_study(["study=a", "study=b"])


THOUSAND = [
    *("seed=range(1,26)", "model=tiny-llama,tiny-gqa", "workload=zipf,uniform"),
    *("batching=mixed,chunked", "cache.blocks=choice(60,64,80,96,256)"),
]


@pytest.mark.thorough
def test_a_thousand_experiments_are_planned_without_torch_or_vllm() -> None:
    code = (
        "import sys; from pathlib import Path; from kvscope.plan.grid import expand;"
        "plan = expand(None, sys.argv[2:], Path(sys.argv[1]));"
        "heavy = {'torch', 'vllm', 'pandas', 'vl_convert'} & set(sys.modules);"
        "ids = {planned.experiment.id for planned in plan.experiments};"
        "print(len(ids), sorted(heavy))"
    )
    command = [sys.executable, "-c", code, str(CONFIG), *THOUSAND]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["1000", "[]"]
