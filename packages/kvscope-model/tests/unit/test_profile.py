"""The memory of a profile run follows from the shapes of its tensors, as servers have logged."""

from dataclasses import replace

import pytest

from kvscope_model.capacity.gpus import gpu_of
from kvscope_model.capacity.memory import rank
from kvscope_model.capacity.profile import ALLOCATOR_BYTES, CURRENT, Release, Shape

GIB = 2**30
DENSE = Shape(  # Llama 3.1 8B on an H100
    tokens=8192,
    requests=1024,
    hidden=4096,
    inner=14336,
    experts=0,
    expert_inner=0,
    encoder=0,
    encoder_inner=0,
    vocabulary=128256,
    number_bytes=2,
    layers=32,
    tensor_ranks=1,
    stages=1,
    graphs=51,
    samples=True,
)
EXPERTS = replace(  # Mixtral 8x7B on two
    DENSE, inner=0, experts=2, expert_inner=7168, vocabulary=32000, tensor_ranks=2
)
IMAGES = replace(DENSE, encoder=1152, encoder_inner=4304)
OLDER = Release(14.5, 0, counts_graphs=False)  # 0.17 to 0.20


# github.com/llm-d-incubation/llm-d-planner, accuracy/results/v0.19.0: vLLM 0.19 on H100s
@pytest.mark.parametrize(
    ("shape", "logged_gib"),
    [
        (DENSE, 1.89),
        (replace(DENSE, tensor_ranks=4), 1.89),
        (replace(DENSE, vocabulary=32016, inner=11008), 0.77),
        (replace(DENSE, hidden=2304, inner=9216, vocabulary=256000), 3.62),
        (EXPERTS, 1.21),
        (replace(EXPERTS, hidden=2048, experts=8, expert_inner=768, vocabulary=151936), 2.68),
    ],
)
def test_the_peak_is_what_servers_logged(shape: Shape, logged_gib: float) -> None:
    assert shape.activation_bytes(OLDER) / GIB == pytest.approx(logged_gib, abs=0.04)


def test_the_sampler_keeps_counts_beside_its_peak() -> None:
    logits = DENSE.requests * DENSE.vocabulary
    kept = logits * CURRENT.kept_logit_bytes + ALLOCATOR_BYTES
    layer = 2 * DENSE.tokens * (4 * DENSE.hidden + 3 * DENSE.inner)
    assert DENSE.activation_bytes() == pytest.approx(kept + layer, abs=1)
    assert replace(DENSE, samples=False).activation_bytes() == layer + ALLOCATOR_BYTES


def test_more_of_anything_takes_no_less() -> None:
    for shape in (DENSE, EXPERTS, IMAGES):
        for name in ("tokens", "requests", "hidden", "inner", "vocabulary", "encoder"):
            more = replace(shape, **{name: 2 * getattr(shape, name)})
            assert more.activation_bytes() >= shape.activation_bytes()
    assert IMAGES.activation_bytes() > DENSE.activation_bytes()


def test_ranks_divide_a_layer_but_not_the_logits() -> None:
    wide = replace(DENSE, requests=1)
    assert replace(wide, tensor_ranks=8).activation_bytes() < wide.activation_bytes()
    many = replace(DENSE, requests=10_000)
    assert replace(many, tensor_ranks=8).activation_bytes() == many.activation_bytes()


def test_links_of_ranks_take_more_where_switches_reduce() -> None:
    two = replace(DENSE, tensor_ranks=2)
    spent = {
        gpu: rank(gpu_of(gpu), 70 * GIB, 0, two).other_bytes
        - rank(gpu_of(gpu), 70 * GIB, 0, DENSE).other_bytes
        for gpu in ("h100", "a100-80gb")
    }
    assert spent["h100"] > spent["a100-80gb"] > 0


def test_graphs_count_unless_none_are_captured() -> None:
    gpu, usable = gpu_of("h100"), 70 * GIB
    eager = rank(gpu, usable, 0, replace(DENSE, graphs=0))
    assert eager.kv_bytes > rank(gpu, usable, 0, DENSE).kv_bytes
    assert (
        eager.kv_bytes
        == rank(gpu, usable, 0, DENSE, replace(CURRENT, counts_graphs=False)).kv_bytes
    )


def test_the_usual_value_lies_within_the_range() -> None:
    for name in ("t4", "h100", "gb10"):
        for shape in (DENSE, EXPERTS, IMAGES):
            memory = rank(gpu_of(name), 70 * GIB, 10 * GIB, shape)
            assert memory.kv_low_bytes < memory.kv_bytes < memory.kv_high_bytes
