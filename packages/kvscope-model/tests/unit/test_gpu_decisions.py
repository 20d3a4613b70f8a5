"""On the modeled device, limits and blocks are those that vLLM decides on its hardware's GPU."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_up_plans import PLAN

from kvscope.base.errors import BadInput
from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import Plan, expand
from kvscope.tables.kv_plan import KvGroup
from kvscope_model.capacity import planned_node, request
from kvscope_model.capacity.request import ANSWER, Answer, Question

CONFIG = Path(__file__).parents[4] / "config"
CHUNKED = ("batching=chunked", "batching.chunk_tokens=512")
HYBRID = ("model=tiny-hybrid", "device.hardware=h100")

# Blocks of 48 tokens for attention, and a state of 12,000 bytes in each of four layers.
STATE = KvGroup("Mamba", 4, 1024, 48_000, 98_304, 98_304)
ATTENTION = KvGroup("FullAttention", 4, 48, 98_304, 98_304, 98_304)


def plan(*words: str) -> Plan:
    kernels = [] if any("kernels" in word for word in words) else ["device.kernels=vllm"]
    return expand(None, ["device=modeled", *kernels, *words], CONFIG)


def planned(*words: str) -> Experiment:
    (one,) = plan(*words).experiments
    return one.experiment


def limits(*words: str) -> tuple[int, int]:
    engine = planned("engine.max_model_len=1024", "cache.blocks=600", *words).engine
    return engine.max_num_batched_tokens, engine.max_num_seqs


@pytest.mark.parametrize(
    ("hardware", "expected"),
    [
        ("h100", (8192, 1024)),
        ("h200", (8192, 1024)),
        ("a100-80gb", (2048, 256)),
        ("a100-40gb", (2048, 256)),
        ("rtx-4090", (2048, 256)),
    ],
)
def test_limits_are_vllms_defaults_on_the_gpu(hardware: str, expected: tuple[int, int]) -> None:
    assert limits(f"device.hardware={hardware}", *CHUNKED) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("engine.max_num_seqs=64",), (8192, 64)),
        (("engine.max_num_seqs=2",), (2048, 2)),  # as much as two of the longest requests have
        (("engine.max_num_batched_tokens=640",), (640, 640)),
        (("engine.max_num_batched_tokens=640", "engine.max_num_seqs=32"), (640, 32)),
    ],
)
def test_limits_that_are_set_stay_and_the_others_follow(
    words: tuple[str, ...], expected: tuple[int, int]
) -> None:
    assert limits("device.hardware=h100", *CHUNKED, *words) == expected


def test_a_pass_has_room_for_a_prompt_that_is_not_cut() -> None:
    words = ("device.hardware=a100-80gb", "model=llama-3.1-8b", "cache.blocks=600")
    long = (*words, "engine.max_model_len=8192")
    assert planned(*long, "batching=mixed").engine.max_num_batched_tokens == 8192
    assert planned(*long, *CHUNKED).engine.max_num_batched_tokens == 2048


@pytest.mark.parametrize(
    ("kernels", "expected"), [("vllm", ("vllm", 0.0)), ("vllm-0.4.2", ("vllm-0.4.2", 0.01))]
)
def test_admission_is_that_of_the_vllm_whose_kernels_are_modeled(
    kernels: str, expected: tuple[str, float]
) -> None:
    cache = planned("device.hardware=h100", f"device.kernels={kernels}", "cache.blocks=600").cache
    assert (cache.admission, cache.watermark) == expected


@pytest.mark.parametrize("word", ["device.hardware=cpu", "device.kernels=vllm-0.4.2"])
def test_a_cpu_and_the_paper_s_vllm_have_the_defaults_of_the_paper(word: str) -> None:
    assert limits(word, *CHUNKED) == (1024, 256)


def test_a_value_beyond_a_default_names_the_gpu_as_its_origin() -> None:
    words = ("device.hardware=a100-80gb", "batching=chunked", "batching.chunk_tokens=4096")
    with pytest.raises(BadInput, match=r"2048\).*vLLM's default on device.hardware=a100-80gb"):
        planned(*words)


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Question]:
    """The questions to a vLLM that plans STATE and ATTENTION for every model."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    questions: list[Question] = []
    answer = Answer(replace(PLAN, groups=(ATTENTION, STATE)), {}, [])

    def answered(asked: Sequence[Any], first: Question) -> list[dict[str, Any]]:
        questions.extend([first] * len(asked))
        return [ANSWER.dump_python(answer, mode="json") for _ in asked]

    monkeypatch.setattr(request, "_answered", answered)
    return questions


def test_blocks_that_hold_states_are_those_of_the_gpu(asked: list[Question]) -> None:
    experiment = planned(*HYBRID)
    assert experiment.cache.block_size == 48
    groups = {group.kind: group for group in experiment.kv_groups}
    assert groups["Mamba"].useful_bytes == STATE.useful_bytes
    assert experiment.block_bytes == STATE.block_bytes
    (question,) = asked
    assert {"--block-size=16", "--max-num-seqs=1024", "--no-enable-chunked-prefill"} <= {
        *question.arguments
    }


def test_what_is_planned_otherwise_than_asked_is_said(asked: list[Question]) -> None:
    size, states = plan(*HYBRID, "seed=1,2").notes
    assert size.startswith("cache.block_size: asked 16, planned 48 for model=tiny-hybrid on device")
    assert "of 12,000 bytes a layer" in size
    assert "asked for states of 10,112 bytes a layer, planned 12,000" in states
    assert plan(*HYBRID, "cache.block_size=48").notes == (states,)


def test_experiments_that_differ_in_nothing_of_it_ask_once(asked: list[Question]) -> None:
    plan(*HYBRID, "seed=range(1,20)", "cache.blocks=200,300")
    plan(*HYBRID, "overflow.victim=first,longest")
    assert len(asked) == 1


def test_models_that_keep_tokens_ask_nothing(asked: list[Question]) -> None:
    for model in ("llama-3.1-8b", "tiny-interleaved", "tiny-shared", "deepseek-v2-lite"):
        words = (f"model={model}", "cache.block_size=16,32", "cache.blocks=800")
        sizes = [entry.experiment.cache.block_size for entry in plan(*words).experiments]
        assert sizes == [16, 32]
    assert not asked


def test_a_plan_that_cannot_be_made_here_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(planned_node, "find_spec", lambda _: None)
    with pytest.raises(BadInput, match="is not installed; run `make env`, or ask for the plan of"):
        plan(*HYBRID)
