"""An experiment: its id, its file, and what it refuses."""

import copy
import random
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from kvscope.base import plugins
from kvscope.base.errors import BadInput
from kvscope.engine.overflow.swap import Swap
from kvscope.plan import registry
from kvscope.plan.experiment import Experiment, dump, load, parse
from kvscope.plan.grid import expand

from .plugged_in import plug_in

CONFIG = Path(__file__).parents[2] / "config"
ASKED = [
    *("model=tiny-llama", "workload=zipf", "workload.num_requests=8", "batching=chunked"),
    *("batching.chunk_tokens=64", "cache.blocks=60", "cache.block_size=32", "seed=3", "repeats=2"),
]


def experiment(*overrides: str) -> Experiment:
    (planned,) = expand(None, list(overrides), CONFIG).experiments
    return planned.experiment


def parsed(value: Any) -> Experiment:
    return parse(value, lambda key: "a test")


DEFAULTS = experiment().model_dump()
FILE = f"workload.path='{CONFIG}/lengths/figure6.csv'"
TRACE = experiment("workload=trace", FILE).model_dump()


@st.composite
def values(draw: st.DrawFn) -> dict[str, Any]:
    """Plain values of valid experiments, edges of text and floats included."""
    value = copy.deepcopy(draw(st.sampled_from([DEFAULTS, TRACE])))
    value["seed"] = draw(st.integers(0, 2**32 - 1))
    value["repeats"] = draw(st.integers(1, 99))
    value["warmup"] = draw(st.integers(0, 9))
    value["model"]["rope_theta"] = draw(st.floats(1e-9, 1e9))
    value["workload"]["arrival"] = "poisson"
    value["workload"]["rate_per_s"] = draw(st.floats(1e-4, 1e6))
    if "path" in value["workload"]:
        value["workload"]["path"] = draw(
            st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(["1e3", "no", "~"])
        )
    value["cache"] = draw(
        st.builds(lambda b: {"block_size": 32, "blocks": b}, st.integers(32, 10**9))
        | st.builds(lambda g: {"block_size": 32, "gib": g}, st.floats(0.01, 1e6))
    )
    return value


@given(value=values())
def test_a_dumped_experiment_loads_as_itself(value: dict[str, Any], tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("experiment") / "experiment.yaml"
    path.write_text(dump(parsed(value)), encoding="utf-8")
    assert load(path) == parsed(value)
    assert dump(load(path)) == dump(parsed(value))


@given(values(), st.randoms())
def test_the_id_does_not_depend_on_the_order_of_keys(
    value: dict[str, Any], shuffler: random.Random
) -> None:
    assert parsed(_shuffled(value, shuffler)).id == parsed(value).id


def _shuffled(value: Any, shuffler: random.Random) -> Any:
    if not isinstance(value, dict):
        return value
    items = [(key, _shuffled(item, shuffler)) for key, item in value.items()]
    shuffler.shuffle(items)
    return dict(items)


def test_the_id_is_the_same_in_another_process() -> None:
    code = (
        "from pathlib import Path; from kvscope.plan.grid import expand; import sys;"
        "print(expand(None, sys.argv[2:], Path(sys.argv[1])).experiments[0].experiment.id)"
    )
    command = [sys.executable, "-c", code, str(CONFIG), *ASKED]
    other = subprocess.run(command, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == experiment(*ASKED).id


def test_the_id_is_a_readable_slug_and_ten_digits() -> None:
    slug, _, digits = experiment(*ASKED).id.rpartition("-")
    assert slug == "tiny-llama-zipf8-chunked64-recompute-b60x32"
    assert len(digits) == 10
    assert int(digits, 16) >= 0


def test_ids_do_not_change() -> None:
    """Results are found by id: a change of this number orphans everybody's results."""
    assert experiment(*ASKED).id == "tiny-llama-zipf8-chunked64-recompute-b60x32-cf109f3bb2"


@pytest.mark.packages
def test_the_ids_of_shipped_studies_stay_what_they_are() -> None:
    """Also ids of experiments with files: these depend on the contents, which git keeps."""
    results = [p.experiment.id for p in expand("quickstart", ["repeats=3"], CONFIG).experiments]
    assert results == [
        "tiny-llama-fixed24-mixed-recompute-b192x32-fdeb167301",
        "tiny-llama-fixed24-chunked256-recompute-b192x32-304dec5bdc",
        "tiny-llama-fixed24-mixed-recompute-b48x32-0312301edc",
        "tiny-llama-fixed24-chunked256-recompute-b48x32-6824f534d8",
        "tiny-llama-zipf24-mixed-recompute-b192x32-9427eb32cd",
        "tiny-llama-zipf24-chunked256-recompute-b192x32-9fac1aec8f",
        "tiny-llama-zipf24-mixed-recompute-b48x32-51a59f69c4",
        "tiny-llama-zipf24-chunked256-recompute-b48x32-920270805e",
        "tiny-llama-trace-mixed-recompute-b128x16-full-b8392ada84",
    ]


def _changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return "another" if value is None else value + "x"


def _leaves(part: BaseModel, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    result: list[tuple[str, ...]] = []
    for name in type(part).model_fields:
        value = getattr(part, name)
        inner = isinstance(value, BaseModel)
        result += _leaves(value, (*path, name)) if inner else [(*path, name)]
    return result


def _with_changed_leaf(part: BaseModel, path: tuple[str, ...]) -> Any:
    name, *rest = path
    value = getattr(part, name)
    changed = _with_changed_leaf(value, tuple(rest)) if rest else _changed(value)
    return part.model_copy(update={name: changed})


# An experiment in which many keys have a value.
WIDE = experiment("model=llama-3.1-8b", "workload=zipf", "batching=chunked")


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # new values may be invalid
@pytest.mark.parametrize("path", _leaves(WIDE), ids=".".join)
def test_a_change_of_any_leaf_changes_the_id(path: tuple[str, ...]) -> None:
    assert _with_changed_leaf(WIDE, path).id != WIDE.id


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("workload.theta=0.5", "workload.theta=5e-1"),
        ("workload.prompt_to_output_ratio=1", "workload.prompt_to_output_ratio=1.0"),
        ("workload.num_requests=4", "workload.num_requests=4.0"),
    ],
)
def test_a_number_written_in_two_ways_is_one_experiment(one: str, other: str) -> None:
    assert experiment("workload=zipf", one).id == experiment("workload=zipf", other).id


@pytest.mark.parametrize("value", ["true", "1.5", "abc", "'3'", "null", "-1"])
def test_a_count_is_a_whole_number(value: str) -> None:
    with pytest.raises(BadInput, match=r"seed is .* must be"):
        experiment(f"seed={value}")


@pytest.mark.parametrize("value", ["abc", "true", "nan", "inf", "0", "-2.0"])
def test_a_rate_is_a_positive_finite_number(value: str) -> None:
    with pytest.raises(BadInput, match=r"workload\.rate_per_s is .* must be"):
        experiment("workload.arrival=poisson", f"workload.rate_per_s={value}")


def test_the_cache_may_be_sized_in_gib() -> None:
    result = experiment("cache.gib=0.01")
    assert result.cache.blocks is None
    # 0.01 GiB = 10,737,418.24 bytes, of 262,144 bytes a block of 32 tokens of tiny-llama.
    assert result.block_bytes == 262_144
    assert result.cache_blocks == 40
    assert result.cache_tokens == 1280


def test_blocks_and_gib_of_the_same_room_differ_in_name_only() -> None:
    assert experiment("cache.gib=1").cache_blocks == experiment("cache.blocks=4096").cache_blocks


def test_an_experiment_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        experiment().seed = 1  # type: ignore[misc]


# Settings that vLLM or common sense forbid, and words of the refusal.
IMPOSSIBLE = [
    (["engine.max_model_len=5000", "cache.blocks=999"], "model.max_position_embeddings (4096"),
    (["model=tiny-opt", "engine.max_model_len=2049"], "model.max_position_embeddings (2048"),
    (["cache.blocks=31"], "must hold one request of engine.max_model_len (1024)"),
    (["cache.gib=0.001"], "must hold one request of engine.max_model_len (1024)"),
    (["cache.block_size=16", "cache.blocks=512"], "must be a multiple of 32"),
    (["device=cuda", "cache.block_size=8"], "must be a multiple of 16"),
    (["model=tiny-mla", "cache.block_size=32"], "cache.block_size (32) must be 16 for a latent"),
    (
        ["model=tiny-mla", "cache.block_size=16", "cache.blocks=512", "cache.dtype=fp8"],
        "cache.dtype (fp8) must be auto for a latent",
    ),
    (["cache.blocks=null"], "exactly one of cache.blocks (null) and cache.gib (null)"),
    (["cache.blocks=64", "cache.gib=1"], "exactly one of cache.blocks (64) and cache.gib (1"),
    (["batching=chunked", "batching.chunk_tokens=4097"], "engine.max_num_batched_tokens (4096)"),
    (["engine.max_num_batched_tokens=512"], "computes a prompt whole"),
    (["engine.max_num_seqs=5000"], "must not exceed engine.max_num_batched_tokens (4096)"),
    (["workload.prompt_tokens=1000"], "(1032) must not exceed engine.max_model_len (1024)"),
    (["workload=zipf", "workload.max_tokens=1025"], "must not exceed engine.max_model_len"),
    (["workload=uniform", "workload.min_tokens=600"], "workload.max_tokens (512)"),
    (["workload.arrival=trace"], "needs workload=trace"),
    (["workload.arrival=poisson"], "workload.rate_per_s must be set"),
    (["workload.rate_per_s=3"], "has no meaning with workload.arrival=all_at_once"),
    (
        ["model.attention_heads=16", "model.kv_heads=16", "model.head_size=16"],
        "model.head_size (16) must be one of 32, 64",
    ),
    (["repeats=0"], "repeats is 0 (the command line) but must be at least 1"),
    (["warmup=-1"], "warmup is -1 (the command line) but must be at least 0"),
    (["seed=4294967296"], "must be less than 4294967296"),
]


@pytest.mark.parametrize(("overrides", "complaint"), IMPOSSIBLE, ids=lambda value: str(value)[:50])
def test_impossible_combinations_are_refused(overrides: list[str], complaint: str) -> None:
    with pytest.raises(BadInput) as error:
        experiment(*overrides)
    assert complaint in str(error.value)
    assert "the command line" in str(error.value), "must say where the value comes from"


# The largest or smallest value that each of these bounds lets through.
@pytest.mark.parametrize(
    "overrides",
    [
        ["model=tiny-opt", "engine.max_model_len=2048"],
        ["cache.blocks=32"],
        ["device=cuda", "cache.block_size=16", "cache.blocks=64"],
        ["batching=chunked", "batching.chunk_tokens=4096"],
        ["batching=chunked", "engine.max_num_batched_tokens=256"],
        ["engine.max_num_batched_tokens=1024"],
        ["workload.prompt_tokens=992"],
        ["workload=uniform", "workload.min_tokens=512"],
        ["workload.arrival=poisson", "workload.rate_per_s=3"],
    ],
    ids=lambda value: " ".join(value),
)
def test_bounds_are_inclusive(overrides: list[str]) -> None:
    experiment(*overrides)


def test_load_names_file_and_key(tmp_path: Path) -> None:
    path = tmp_path / "experiment.yaml"
    path.write_text(dump(experiment()).replace("seed: 1234", "seed: many"))
    with pytest.raises(BadInput) as error:
        load(path)
    assert str(error.value) == f"seed is 'many' ({path}) but must be a whole number"


def test_an_unknown_policy_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    path = tmp_path / "experiment.yaml"
    path.write_text(dump(experiment()).replace("name: mixed", "name: decode_first"))
    with pytest.raises(BadInput) as error:
        load(path)
    assert str(error.value) == (
        "batching.name is 'decode_first' but must be one of chunked, mixed, prefill_first, or one "
        "that an installed package registers under 'kvscope.batching'; change "
        f"batching ({path})"
    )


class LongSwap(Swap):
    threshold_tokens: int | None = 256


def test_a_null_that_is_no_default_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plug_in(monkeypatch, "overflow", {"long_swap": LongSwap})
    words = ("overflow=long_swap", "overflow.host_blocks=9")
    default, null = experiment(*words), experiment(*words, "overflow.threshold_tokens=null")
    assert experiment(*words, "overflow.threshold_tokens=256").id == default.id != null.id
    path = tmp_path / "experiment.yaml"
    path.write_text(dump(null))
    assert load(path) == null
    assert null.host_blocks == 9


def test_two_packages_with_a_policy_of_one_name_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = [EntryPoint("mine", value, "kvscope.overflow") for value in ("a:A", "b:B")]
    monkeypatch.setattr(plugins, "entry_points", lambda **_: points)
    cached = (registry.find_registered, plugins.names, plugins.find)
    for function in cached:
        function.cache_clear()
    try:
        with pytest.raises(BadInput, match=r"'mine' is registered twice as \S+, a:A "):
            registry.find_registered("overflow")
    finally:
        for function in cached:
            function.cache_clear()
