"""What a server has room for follows from vLLM's plan: requests at once, memory, advice."""

from dataclasses import replace
from typing import Any

import pytest
from made_up_plans import PLAN

from kvscope.base.errors import BadInput
from kvscope.tables.kv_bytes import HeldBlocks, KvPlan
from kvscope_model.capacity import published
from kvscope_model.capacity.gpus import gpu_of, gpus
from kvscope_model.capacity.memory import Budget, RankMemory
from kvscope_model.capacity.request import ANSWER, Answer, Variant
from kvscope_model.hardware.files import names
from kvscope_model.report.capacity import MEMORY, Capacity, Mix

LATENT = "the latent of each token has no heads to divide: it"
NO_ROOM = "the model needs 9 GiB. Give more --memory, or max_model_len=N."


def capacity(plan: KvPlan = PLAN, *mixes: Mix, **given: Any) -> Capacity:
    answer = {"memory": {}, "notes": [], "refused": None, "variants": []} | given
    settings = answer.pop("settings", {})
    return Capacity(Answer(plan, **answer), gpu_of("h100"), 1, [256, 512], mixes, settings)


def test_every_gpu_has_a_name_of_cuda_and_known_speeds() -> None:
    assert {gpu.hardware for gpu in gpus().values()} <= {*names(), None}
    assert len({gpu.name for gpu in gpus().values()}) == len(gpus())
    assert gpu_of("NVIDIA-H100") is gpu_of("h100")


def test_an_unknown_gpu_is_a_sentence_with_the_known_ones() -> None:
    with pytest.raises(BadInput, match=r"--gpu is 'h1000' \(did you mean 'h100'\?\) but must be"):
        gpu_of("h1000")


@pytest.mark.parametrize(("name", "why"), [("Tesla-V100", "has 7.0"), ("mi300x", "is AMD")])
def test_a_gpu_that_vllm_s_cuda_releases_do_not_run_on_is_a_sentence(name: str, why: str) -> None:
    with pytest.raises(BadInput, match=f"--gpu is '{name}', but .*{why}.*; choose one of t4, a10"):
        gpu_of(name)


def test_a_mix_lies_between_its_shortest_and_longest_requests() -> None:
    plan = replace(PLAN, held=(HeldBlocks(257, (5, 5, 17), (16, 16, 17)), PLAN.held[1]))
    short, long = (plan.requests(held) for held in plan.held if held)
    assert long <= capacity(plan).requests_of(Mix(256, 256)) <= short


def test_requests_of_a_mix_are_half_through_their_output() -> None:
    one, other = HeldBlocks(101, (10,), (10,)), HeldBlocks(300, (30,), (30,))
    plan = replace(PLAN, groups=PLAN.groups[-1:], held=(one, other), blocks=231)
    assert capacity(plan).requests_of(Mix(100, 200)) == 1 + (230 - 30) // 20


def test_a_mix_that_does_not_fit_has_no_requests() -> None:
    assert capacity().requests_of(Mix(8000, 192)) == 0


def test_a_refusal_is_said_first_with_what_fits() -> None:
    lines = " ".join(capacity(refused=NO_ROOM).lines())
    assert "It does not start: the model needs 9 GiB." in lines
    assert "First flag to change: max_model_len=4096" in lines
    assert capacity(refused=NO_ROOM).as_json()["starts"] is False
    assert capacity().as_json()["starts"] is True


def test_too_few_states_name_the_setting_that_helps() -> None:
    few = replace(PLAN, refused="max_num_seqs (9) exceeds 7 blocks; give max_num_seqs=7 or less")
    assert capacity(few).as_json()["first_flag"] == "max_num_seqs=7 or less"


@pytest.mark.parametrize(("requests", "advised"), [(1, False), (5, True)])
def test_a_flag_is_advised_if_it_gives_more(requests: int, advised: bool) -> None:
    variant = Variant("kv_cache_dtype=fp8", 512, requests)
    now = capacity().requests(512)
    assert now == 1
    advice = capacity(variants=[variant]).advice()
    assert advice.startswith("kv_cache_dtype=fp8: 5 requests of 512") is advised


def test_what_differs_from_what_was_asked_is_said() -> None:
    told = " ".join(capacity(settings={"block_size": "32", "max_num_seqs": "9"}).lines())
    assert "block_size=32 was asked for, blocks of SlidingWindow have 16 tokens" in told
    assert "max_num_seqs=9 was asked for, 256 is planned" in told
    assert "asked for" not in " ".join(capacity(settings={"block_size": "16"}).lines())


@pytest.mark.parametrize(
    ("heads", "ranks", "told"),
    [
        (2, 8, ["2 KV heads on 8 ranks: each is kept 4 times"]),
        (8, 8, []),
        (8, 2, []),
        (None, 8, []),
    ],
)
def test_heads_that_several_ranks_keep_are_said(
    heads: int | None, ranks: int, told: list[str]
) -> None:
    asked = capacity(settings={"tensor_parallel_size": str(ranks)})
    assert [*replace(asked, kv_heads=heads).differences()] == told


def test_a_latent_is_kept_by_every_rank() -> None:
    latent = replace(PLAN, groups=(replace(PLAN.groups[-1], kind="MLAAttention"),), longest=(9,))
    (sentence,) = capacity(latent, settings={"tensor_parallel_size": "8"}).differences()
    assert sentence == f"{LATENT} is kept 8 times"


def test_a_block_that_no_request_fills_is_never_hit() -> None:
    wide = replace(PLAN, prefix_caching=True, max_model_len=15)
    assert "no request of 15 tokens fills a block of 16" in " ".join(capacity(wide).never_hit())
    assert not [*capacity(replace(wide, max_model_len=16)).never_hit()]
    assert not [*capacity(replace(wide, prefix_caching=False)).never_hit()]


def test_lines_fit_into_eighty_columns() -> None:
    memory = {"stated": False, "ranks": 2 * [dict.fromkeys(MEMORY, 2**37)]}
    mix = Mix(100_000, 10_000)
    lines = capacity(PLAN, mix, refused=NO_ROOM, memory=memory).lines()
    assert max(map(len, lines)) <= 80


def test_memory_of_a_rank_is_conserved() -> None:
    rank = RankMemory(100, 50, 20, 10, 10, 30)
    parts = rank.kv_bytes + rank.weight_bytes + rank.activation_bytes + rank.other_bytes
    assert parts == rank.usable_bytes


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        (60, ""),
        (95, "take 95.0 GiB, all else about 10.0 GiB, and vLLM may use 100.0 GiB."),
        (300, "take 300.0 GiB, and vLLM may use 100.0 GiB."),
    ],
)
def test_weights_that_do_not_fit_say_what_there_is(weights: int, told: str) -> None:
    rank = RankMemory(100 * 2**30, weights * 2**30, 2**33, 2**31, 0, 0)
    short = Budget(gpu_of("h100"), None, [rank]).shortage()
    assert short.endswith(told)
    assert bool(short) is bool(told)


EMPTY = replace(PLAN, blocks=0, memory_bytes=0, capacity_tokens=0)
RANKS = {"stated": False, "ranks": [dict.fromkeys(MEMORY, 2**37) | {"kv_bytes": -(2**30)}]}
SHORT = "the weights of each GPU take 132.0 GiB, and vLLM may use 72.9 GiB."


def test_a_server_without_room_holds_nothing_and_its_requests_have_their_bytes() -> None:
    variants = [Variant("--gpus 2", 512, 7), Variant("quantization=fp8", 512, 3)]
    asked = capacity(EMPTY, Mix(256, 256), refused=SHORT, memory=RANKS, variants=variants)
    lines = [*asked.lines()]
    assert f"It does not start: {SHORT}" in " ".join(lines)
    assert [line.split() for line in lines if "KV cache" in line] == [["KV", "cache", "none"]]
    (row,) = (line.split() for line in lines if line.startswith("512"))
    assert row[1] == "0"
    assert row[-2] != "0"
    assert "First flag to change: quantization=fp8: 3 requests of 512 tokens" in " ".join(lines)
    assert "Other flags: --gpus 2: 7 requests of 512 tokens at once" in " ".join(lines)
    answer = asked.as_json()
    assert (answer["starts"], answer["why_not"], answer["at_once"]["512"]) == (False, SHORT, 0)


def test_a_server_that_no_flag_starts_is_told_so() -> None:
    assert capacity(EMPTY, refused=SHORT, memory=RANKS).advice().startswith("none; take a smaller")


@pytest.mark.parametrize(("ranks", "divided", "kept"), [(8, 1, 8), (8, 4, 2), (8, 8, 0)])
def test_ranks_that_divide_tokens_keep_a_latent_less_often(
    ranks: int, divided: int, kept: int
) -> None:
    settings = {"tensor_parallel_size": str(ranks), "decode_context_parallel_size": str(divided)}
    latent = replace(PLAN, groups=(replace(PLAN.groups[-1], kind="MLAAttention"),), longest=(9,))
    told = [*capacity(latent, settings=settings).kept_by_several()]
    assert told == ([f"{LATENT} is kept {kept} times"] if kept else [])


def test_memory_that_the_estimate_leaves_out_is_said() -> None:
    told = " ".join(capacity(settings={"cpu_offload_gb": "10"}).differences())
    assert "cpu_offload_gb is set: the estimate of the GPU's memory does not count" in told
    assert not [*capacity(settings={"cpu_offload_gb": "0", "enable_lora": "false"}).differences()]


def test_an_answer_is_the_same_after_a_round_trip() -> None:
    variant = Variant("kv_cache_dtype=fp8", 512, 3)
    answer = Answer(PLAN, {"ranks": []}, ["a note"], None, [variant])
    again = ANSWER.validate_python(ANSWER.dump_python(answer, mode="json"))
    assert again.plan == PLAN
    assert [*again.variants] == [variant]


def test_a_published_configuration_is_planned_as_it_is_before_parts_are_left_out() -> None:
    config = {"model_type": "llama", "quantization_config": {"quant_method": "awq"}}
    whole, without = published.attempts(config, ["--a=1"])
    assert (whole.config, whole.arguments, whole.notes) == (config, ["--a=1"], [])
    assert without.config == {"model_type": "llama"}
    assert "quantization awq left out" in without.notes[0]


def test_images_and_own_code_are_left_out_and_that_is_said() -> None:
    text = {"auto_map": {"AutoModel": "x"}, "layers": 2}
    config = {"model_type": "vl", "vision_config": {"depth": 3}, "text_config": text}
    (attempt,) = published.attempts(config, [])
    assert attempt.config["text_config"] == {"layers": 2}
    assert attempt.arguments == ["--language-model-only"]
    assert len(attempt.notes) == 2
    assert attempt.encoders
    (text_alone,) = published.attempts(config, ["--language-model-only"])
    assert not text_alone.encoders
