"""The offload engine computes what transformers computes, whatever a policy keeps where."""

from functools import cache
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.base.errors import KvscopeError
from kvscope.plan.models import Model
from kvscope_offload.amounts import loaded_bytes, stored_bytes
from kvscope_offload.cost import CostModel
from kvscope_offload.lanes import RealLanes
from kvscope_offload.pipeline import Job
from kvscope_offload.policies import POLICIES as BY_NAME
from kvscope_offload.policies.act_only import ActOnly
from kvscope_offload.policies.flexgen import FlexGen
from kvscope_offload.policies.gpu_kv import GpuKv
from kvscope_offload.policies.hybrid import Hybrid
from kvscope_offload.policies.kv_only import KvOnly
from kvscope_offload.policies.token import TokenRecompute
from kvscope_offload.policies.zero_inference import ZeroInference
from kvscope_offload.split import Split
from kvscope_offload.tensor_engine import Generated, TensorEngine
from kvscope_offload.weights import of_transformers

pytestmark = pytest.mark.engine

HOST: dict[str, Any] = {"host_gib": 1.0}


class WithIds(Hybrid):
    """Contents that `hybrid` keeps if rebuilding is fast: ids of a prefix, activations of the
    rest."""

    kept: ClassVar[Split] = Split(activation=0.6, token=0.4)

    def split(self, cost, demand, trial) -> Split:
        return self.kept


class OfEach(WithIds):
    """Ids, K and V, and activations in one request."""

    kept: ClassVar[Split] = Split(activation=0.3, token=0.4)


POLICIES = {
    "gpu_kv": GpuKv(name="gpu_kv", device_gib=1.0),
    "zero_inference": ZeroInference(name="zero_inference", device_gib=1.2e-4),
    "flexgen": FlexGen(name="flexgen", **HOST),
    "kv_only": KvOnly(name="kv_only", **HOST, device_gib=3e-5, minibatches=2),
    "act_only": ActOnly(name="act_only", **HOST),
    "token": TokenRecompute(name="token", **HOST, share=0.5),
    "hybrid": Hybrid(name="hybrid", **HOST, device_gib=3e-5, share=0.5),
    "one buffer": Hybrid(name="hybrid", **HOST, share=0.4, buffers=1, spread_weights=False),
    "three buffers": Hybrid(name="hybrid", **HOST, share=0.7, buffers=3, balanced=False),
    "resident": Hybrid(name="hybrid", **HOST, share=0.3, weights="resident", minibatches=1),
    "with ids": WithIds(name="hybrid", **HOST, device_gib=3e-5),
    "of each": OfEach(name="hybrid", **HOST, minibatches=2),
}
MODELS: dict[str, tuple[Any, int]] = {
    "opt": ("opt", 4),
    "llama": ("llama", 4),
    "llama, grouped": ("llama", 2),
}
# Shorter than a block, of a block, over several; generation crosses blocks and ends raggedly.
LENGTHS = ((53, 6), (16, 9), (5, 14), (33, 1))


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny products on several threads take longer to meet than to compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def model(name: str) -> Model:
    family, kv_heads = MODELS[name]
    return Model(
        name="tiny",
        family=family,
        dtype="float32",
        hidden_size=64,
        layers=3,
        attention_heads=4,
        kv_heads=kv_heads,
        head_size=16,
        intermediate_size=96,
        vocab_size=211,
        max_position_embeddings=96,
        tie_word_embeddings=family == "opt",
        rope_theta=None if family == "opt" else 10000.0,
    )


@cache
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(5, 200, (n,), generator=generator).tolist() for n, _ in LENGTHS]


def made_by_transformers(of: Model, seed: int):
    from transformers import LlamaConfig, LlamaForCausalLM, OPTConfig, OPTForCausalLM

    config = of.hf_config()
    config.pop("architectures")
    torch.manual_seed(seed)
    if of.family == "opt":
        return OPTForCausalLM(OPTConfig(**config, init_std=0.2)).eval()
    return LlamaForCausalLM(LlamaConfig(**config, initializer_range=0.2)).eval()


@cache
def transformers_model(name: str):
    return made_by_transformers(model(name), seed=1)


def greedy(hf: Any, prompt: list[int], count: int) -> list[int]:
    """transformers' tokens of a request alone."""
    with torch.no_grad():
        result = hf.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=1,
        )
    tokens: list[int] = result[0, len(prompt) :].tolist()
    return tokens


@cache
def expected(name: str) -> dict[int, list[int]]:
    pairs = zip(prompts(), LENGTHS, strict=True)
    return {
        i: greedy(transformers_model(name), prompt, count)
        for i, (prompt, (_, count)) in enumerate(pairs)
    }


def generate(name: str, policy: str, **keys) -> Generated:
    cost = CostModel.of_rates(model(name), 1e9, 1e11, 1e10)
    engine = TensorEngine(
        model(name),
        POLICIES[policy],
        source=of_transformers(transformers_model(name)),
        cost=cost,
        **({"overlap": False} | keys),
    )
    try:
        return engine.generate(prompts(), [count for _, count in LENGTHS])
    finally:
        engine.close()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("policy", POLICIES)
def test_greedy_tokens_are_those_of_transformers(name, policy):
    result = generate(name, policy)
    assert result.tokens == expected(name)
    assert [generation.pools.used for generation in result.generations] == [0] * len(
        result.generations
    )


def test_requests_with_and_without_tokens_to_compute_again_share_a_minibatch():
    """Blocks are long: of four requests the policy keeps the ids of the first block or two."""
    policy = TokenRecompute(name="token", **HOST, share=0.4, minibatches=1)
    source = of_transformers(transformers_model("llama"))
    cost = CostModel.of_rates(model("llama"), 1e9, 1e11, 1e10)
    engine = TensorEngine(model("llama"), policy, 64, source=source, cost=cost, overlap=False)
    result = engine.generate(prompts(), [count for _, count in LENGTHS])
    assert result.tokens == expected("llama")


@st.composite
def any_model(draw) -> Model:
    """Either family at small dimensions that are no powers of two."""
    family = draw(st.sampled_from(["opt", "llama"]))
    kv_heads = draw(st.integers(1, 4))
    heads = kv_heads * (1 if family == "opt" else draw(st.integers(1, 4)))
    head_size = 2 * draw(st.integers(2, 12))
    return Model(
        name="tiny",
        family=family,
        dtype="float32",
        hidden_size=heads * head_size,
        layers=draw(st.integers(1, 4)),
        attention_heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        intermediate_size=draw(st.integers(3, 150)),
        vocab_size=draw(st.integers(30, 300)),
        max_position_embeddings=draw(st.integers(60, 150)),
        tie_word_embeddings=draw(st.booleans()),
        rope_theta=None if family == "opt" else draw(st.sampled_from([1e4, 5e5])),
    )


@st.composite
def any_policy(draw):
    """Every policy with settings that matter to where a block lies and in which mini-batch."""
    name = draw(st.sampled_from(sorted(BY_NAME)))
    keys: dict[str, Any] = {"name": name, "minibatches": draw(st.integers(1, 5))}
    keys["weights"] = draw(st.sampled_from(["streamed", "resident"]))
    fields = BY_NAME[name].model_fields
    if BY_NAME[name].host_cache:
        keys |= {"host_gib": 1.0, "device_gib": draw(st.sampled_from([None, 1e-5, 1e-4, 1.0]))}
    else:
        keys["device_gib"] = 1.0
    if "share" in fields:
        keys["share"] = draw(st.floats(0, 1))
    if "buffers" in fields:
        keys["buffers"] = draw(st.integers(1, 3))
        keys |= {"spread_weights": draw(st.booleans()), "balanced": draw(st.booleans())}
    return BY_NAME[name](**keys)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(any_model(), any_policy(), st.integers(1, 40), st.integers(0, 2**16), st.data())
def test_greedy_tokens_are_those_of_transformers_whatever_the_shape(
    of, policy, block_size, seed, data
):
    longest = of.max_position_embeddings // 2
    length = st.tuples(st.integers(1, longest), st.integers(1, 8))
    lengths = data.draw(st.lists(length, min_size=1, max_size=5))
    generator = torch.Generator().manual_seed(seed)
    ids = [torch.randint(3, of.vocab_size, (n,), generator=generator).tolist() for n, _ in lengths]
    hf = made_by_transformers(of, seed)
    cost = CostModel.of_rates(of, 1e9, 1e11, 1e10)
    source = of_transformers(hf)
    engine = TensorEngine(of, policy, block_size, source=source, cost=cost, overlap=False)
    result = engine.generate(ids, [count for _, count in lengths])
    engine.close()
    wanted = [greedy(hf, prompt, n) for prompt, (_, n) in zip(ids, lengths, strict=True)]
    assert [result.tokens[i] for i in range(len(ids))] == wanted


@pytest.mark.parametrize("policy", ["flexgen", "hybrid", "token", "of each"])
def test_lanes_that_overlap_change_no_token(policy):
    link = {"overlap": True, "link_bytes_per_s": 2e9}
    assert generate("llama", policy, **link).tokens == expected("llama")


@pytest.mark.parametrize("name", MODELS)
def test_in_tiles_every_policy_gives_the_bits_of_kv_only(name, monkeypatch):
    """Rebuilt and recomputed K and V equal the stored ones, whatever else is in the batch."""
    from kvscope_offload.architecture import Architecture

    logits, plain = {}, Architecture.logits
    for policy in (
        "kv_only",
        "act_only",
        "hybrid",
        "with ids",
        "token",
        "zero_inference",
        "flexgen",
    ):
        seen: list[torch.Tensor] = []

        def recorded(arch, outer, hidden, seen=seen):
            seen.append(plain(arch, outer, hidden))
            return seen[-1]

        monkeypatch.setattr(Architecture, "logits", recorded)
        generate(name, policy, tile=16, block_size=16)
        logits[policy] = {row.numpy().tobytes() for rows in seen for row in rows}
    assert all(found == logits["kv_only"] for found in logits.values())


@pytest.mark.parametrize("minibatches", [1, 2, 3])
def test_in_tiles_bits_do_not_depend_on_where_in_memory_a_request_lies(minibatches, monkeypatch):
    """Rows of 54 numbers begin at any alignment, by which kernels of attention differ."""
    from kvscope_offload.architecture import Architecture

    of = model("llama, grouped").model_copy(
        update={"attention_heads": 9, "kv_heads": 3, "head_size": 18, "hidden_size": 162}
    )
    source = of_transformers(made_by_transformers(of, seed=1))
    cost, plain = CostModel.of_rates(of, 1e9, 1e11, 1e10), Architecture.logits
    logits = []
    for policy in (KvOnly(name="kv_only", **HOST), ActOnly(name="act_only", **HOST)):
        count = 4 if policy.name == "kv_only" else minibatches
        policy = policy.model_copy(update={"minibatches": count})
        seen: list[torch.Tensor] = []

        def recorded(arch, outer, hidden, seen=seen):
            seen.append(plain(arch, outer, hidden))
            return seen[-1]

        monkeypatch.setattr(Architecture, "logits", recorded)
        engine = TensorEngine(of, policy, 17, source=source, cost=cost, tile=16, overlap=False)
        engine.generate(prompts(), [count for _, count in LENGTHS])
        engine.close()
        logits.append({row.numpy().tobytes() for rows in seen for row in rows})
    assert logits[0] == logits[1]


@pytest.mark.parametrize("policy", ["kv_only", "act_only", "hybrid", "flexgen"])
def test_bytes_that_crossed_the_link_are_those_of_the_lengths(policy):
    result = generate("opt", policy)
    (generation,) = result.generations
    loaded = stored = 0
    for timed in result.passes:
        for batch in timed.step.minibatches:
            loaded += model("opt").layers * loaded_bytes(generation.cost.sizes, batch)
            stored += model("opt").layers * stored_bytes(generation.cost.sizes, batch)
    copied = result.copied
    assert copied["kv"] + copied["activation"] == loaded
    assert copied["stored kv"] + copied["stored activation"] == stored
    if policy in ("kv_only", "flexgen"):
        tokens = sum(prompt + count - 1 for prompt, count in LENGTHS)
        kept = copied["stored kv"] + copied["kept kv"]
        assert kept == tokens * model("opt").kv_bytes_per_token


def test_weights_cross_the_link_once_a_layer_and_pass():
    result = generate("opt", "kv_only")
    layers = [i.layer for i in result.intervals if i.name == "weights"]
    parts = {i.layer: 0 for i in result.intervals}
    for layer in layers:
        parts[layer] += 1
    flat = result.copied["weights"] // (len(result.passes) * model("opt").layers)
    assert result.copied["weights"] == flat * len(result.passes) * model("opt").layers
    assert all(parts[layer] >= len(result.passes) for layer in range(model("opt").layers))


def test_a_cache_that_is_not_loaded_gives_other_tokens(monkeypatch):
    """The negative control: these weights make a lost context visible."""
    from kvscope_offload.tensor_work import TensorWork

    monkeypatch.setattr(TensorWork, "_load", lambda *_: None)
    assert generate("opt", "hybrid").tokens != expected("opt")
    assert generate("opt", "flexgen").tokens != expected("opt")


def test_activations_that_are_not_rebuilt_give_other_tokens(monkeypatch):
    from kvscope_offload.tensor_work import TensorWork

    monkeypatch.setattr(TensorWork, "_rebuild", lambda *_: None)
    assert generate("llama", "act_only").tokens != expected("llama")


def test_an_error_in_a_lane_is_raised_where_the_engine_waits():
    lanes = RealLanes(torch.device("cpu"), None, overlap=True)

    def fail() -> None:
        raise KvscopeError("no room")

    lanes.link.submit(Job("load", fail))
    with pytest.raises(KvscopeError, match="no room"):
        lanes.join()
    lanes.close()


def test_random_weights_depend_on_the_seed_alone():
    policy = POLICIES["hybrid"]
    cost = CostModel.of_rates(model("opt"), 1e9, 1e11, 1e10)
    outputs = []
    for seed in (1, 1, 2):
        engine = TensorEngine(model("opt"), policy, seed=seed, cost=cost, overlap=False)
        outputs.append(engine.generate(prompts()[:2], [6, 6]).tokens)
    assert outputs[0] == outputs[1] != outputs[2]


OFFLOAD = (
    *("model=tiny-opt", "device=offload", "engine.attention=torch", "batching=prefill_first"),
    *("device.link_gb_per_s=2", "cache.blocks=64"),
)


def test_a_run_on_the_path_holds_every_oracle_and_says_what_was_predicted(run):
    """Batches of as many prompt tokens as a pass may have, one after the other."""
    hybrid = run(*OFFLOAD, "device.share=0.5", "device.weights=resident")
    facts = hybrid.facts["engine"]["offload"]
    assert facts["split"]["activation"] == 0.5
    assert facts["simulated_step_s"] > 0
    assert {i["lane"] for i in facts["timeline"]["measured"]} == {"link", "device", "back"}
    steps = hybrid.table("steps")
    assert steps["scheduled_tokens"].max() <= 256
    assert set(steps["phase"]) == {"prefill", "decode"}
    assert hybrid.facts["engine"]["leaked_blocks"] == []


def test_policies_give_the_same_tokens_on_the_path(run):
    runs = [
        run(*OFFLOAD, "device.share=0.5", "device.weights=resident"),
        run(*OFFLOAD, "device.policy=kv_only"),
    ]
    tokens = [
        each.table("requests").set_index(["repeat", "request_id"])["output_sha256"] for each in runs
    ]
    assert tokens[0].equals(tokens[1])
