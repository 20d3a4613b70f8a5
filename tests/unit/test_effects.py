"""Settings without effect: which keys are checked, and which are refused or reported."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvscope.base.errors import BadInput
from kvscope.plan import effects
from kvscope.plan.complaints import all_keys
from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand
from kvscope.workload import requests
from tests.engine.conftest import last_of_each_key
from tests.unit.keys_walked import IN_REQUESTS, LEFT_OUT, SMALL, WALKED

CONFIG = Path(__file__).parents[2] / "config"
OF_PACKAGES = (
    *("policy", "weights", "minibatches", "device_gib", "share", "spread_weights", "balanced"),
    *("buffers", "link_gb_per_s"),
)
ROOM = (
    "device=dry",
    "model=llama-3.1-8b",
    "engine.max_model_len=32768",
    "engine.max_num_batched_tokens=32768",
    "cache.blocks=4096",
    "seed=1",
)


def test_every_key_is_walked_or_left_out_for_a_reason() -> None:
    below = ("model.kv_layers.", "model.rope_scaling.")
    keys = {
        key
        for key in all_keys(Experiment)
        if not key.startswith(below)
        and key.removeprefix("device.") not in OF_PACKAGES
        and not key.endswith(".name")
    }
    seen = {walk.key for walk in WALKED} | {k for keys in IN_REQUESTS.values() for k in keys}
    assert keys - seen - LEFT_OUT.keys() == set()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("workload", "key"), [(name, key) for name, keys in IN_REQUESTS.items() for key in keys]
)
def test_two_values_of_a_workloads_key_are_two_lists_of_requests(
    workload: str, key: str, tmp_path: Path
) -> None:
    words = [f"workload={workload}", *ROOM]
    if workload == "trace":
        rows = (
            {"timestamp": t, "input_length": 9, "output_length": 9} for t in range(0, 8000, 999)
        )
        (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        words.append(f"workload.path='{tmp_path / 't.jsonl'}'")
    if key == "workload.rate_per_s":
        words += ["workload.arrival=poisson", "workload.rate_per_s=2"]
    first, second = built(words), built([*words, *f"{key}={IN_REQUESTS[workload][key]}".split()])
    assert first != second


def built(words: list[str]) -> str:
    """The table `workload` of an experiment; the last word of a key holds."""
    last = {word.partition("=")[0]: word for word in words}
    (planned,) = expand(None, [*last.values()], CONFIG).experiments
    return requests.to_frame(requests.build(planned.experiment)).to_json()


OLD = ("device=dry", "cache.admission=vllm-0.4.2")
REFUSED: list[tuple[str, str]] = [
    (
        "engine.scheduler_reserve_full_isl=false",
        r"engine.scheduler_reserve_full_isl \(false\) must be true with cache.admission=vllm-0.4.2",
    ),
    (
        "engine.scheduler_reserve_full_isl=false cache.admission=vllm batching=mixed",
        r"must be true with batching=mixed, whose first chunk is the whole prompt",
    ),
    (
        "tracing.buffer_events=5000",
        r"tracing.buffer_events \(5000\) has no meaning with tracing=no",
    ),
    (
        "workload=mooncake workload.arrival=all_at_once workload.time_scale=2 "
        "model=llama-3.1-8b engine.max_model_len=32768 cache.blocks=4096",
        r"workload.time_scale \(2.0\) has no meaning with workload.arrival=all_at_once",
    ),
]


@pytest.mark.parametrize(("words", "sentence"), REFUSED)
def test_a_value_with_the_effect_of_the_default_is_refused_by_its_key(
    words: str, sentence: str
) -> None:
    with pytest.raises(BadInput, match=sentence):
        expand(None, [*last_of_each_key([*OLD, *words.split()])], CONFIG)


def notes(*words: str) -> list[str]:
    return effects.notes(expand(None, ["device=dry", *SMALL, *words], CONFIG))


def test_a_plan_names_a_varied_key_without_effect() -> None:
    assert notes() == []
    assert notes("device.threads=2") == [
        "device.threads changes no result on a modeled device, which computes nothing of the model"
    ]
    (note,) = notes("cache.layout=by_layer,by_block", "overflow=recompute,swap")
    assert note.startswith("cache.layout changes no result on device=dry")


@pytest.mark.parametrize(
    "words", ["device=cpu device.threads=2", "overflow=swap cache.layout=by_layer"]
)
def test_keys_with_an_effect_are_not_reported(words: str) -> None:
    given: list[Any] = words.split()
    assert effects.notes(expand(None, ["device=dry", *given][-2:], CONFIG)) == []
