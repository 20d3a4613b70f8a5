"""The cost model: what must hold whatever its numbers are."""

from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.analyse.calibration.loads import loads_of
from kvscope.plan.composition import Composer
from kvscope.plan.hardware import hardware as data
from kvscope.plan.hardware.cost import PassCost, copy_s, paid_elements
from kvscope.plan.models import Model

A100 = data.read("a100-40gb")
MODEL = Model.model_validate(
    Composer(Path("config")).compose((("model", "yarn-llama-2-7b"),))["model"]
)
COST = PassCost(A100, MODEL)
tokens = st.integers(1, 8192)


@given(tokens, tokens)
def test_a_prompt_takes_at_least_the_time_of_its_arithmetic(n: int, context: int):
    flops = 2.0 * n * (MODEL.parameters - 2 * MODEL.vocab_size * MODEL.hidden_size)
    assert COST.pass_s([(n, context)], 0, 0, 0) >= flops / A100.peak_flops_per_s


@given(st.integers(1, 256), st.integers(1, 4096))
def test_a_decode_pass_reads_all_weights_and_the_whole_context(requests: int, context: int):
    held = 2.0 * (MODEL.parameters - MODEL.vocab_size * MODEL.hidden_size)
    held += requests * context * MODEL.kv_bytes_per_token
    seconds = COST.pass_s([], requests, requests * context, context)
    assert seconds >= held / A100.memory_bytes_per_s


@given(st.integers(2, 64), st.integers(1, 2048))
def test_a_longer_context_never_takes_less(requests: int, context: int):
    shorter = COST.pass_s([], requests, requests * context, context)
    assert COST.pass_s([], requests, requests * (context + 16), context + 16) >= shorter


def test_one_long_context_takes_longer_than_its_bytes_with_a_thread_block_a_head():
    split = PassCost(A100, MODEL, split_decode=True)
    assert COST.decode_attention_s(16_000, 16_000) > 2 * split.decode_attention_s(16_000, 16_000)
    assert COST.decode_attention_s(256_000, 1000) == split.decode_attention_s(256_000, 1000)


rows = st.lists(st.tuples(st.integers(1, 600), st.integers(0, 4096)), min_size=1, max_size=20)


@given(st.lists(rows, min_size=1, max_size=8), st.booleans(), st.booleans())
def test_many_passes_take_each_what_it_takes_alone(passes, prefix_kernel, split_decode):
    """To the last bit: intervals begin with what a run recorded."""
    for hardware in (A100, data.read("cpu")):
        cost = PassCost(hardware, MODEL, prefix_kernel, split_decode)
        steps = pd.DataFrame({"step": range(len(passes))})
        batch = pd.DataFrame(
            [(step, *row) for step, rows in enumerate(passes) for row in rows],
            columns=["step", "scheduled_tokens", "context_tokens"],
        )
        together = cost.passes_s(loads_of(steps, batch))
        assert together.tolist() == [cost.rows_s(rows) for rows in passes]


@given(tokens, st.integers(1, 20_000), st.sampled_from([108, 132]))
def test_paid_elements_are_whole_waves_and_at_least_the_output(n, outputs, multiprocessors):
    assert paid_elements(n, outputs, multiprocessors) >= n * outputs


@given(
    st.integers(1, 5000), st.sampled_from(["pinned", "pageable"]), st.sampled_from(["in", "out"])
)
def test_calls_never_take_longer_than_the_copies(copies: int, memory: str, direction: str):
    device_s, issue_s = copy_s(A100, copies, 131_072, memory, direction)
    assert issue_s <= device_s * (1 + 1e-12)
    assert (memory == "pageable") <= (issue_s == device_s)
    rate = getattr(A100, f"{memory}_{direction}_bytes_per_s")
    assert device_s >= copies * 131_072 / rate


@pytest.mark.parametrize("name", [name for name in data.names() if name != "cpu"])
def test_the_published_decode_of_few_requests_is_bound_by_the_weights(name: str):
    hardware = data.read(name)
    seconds = PassCost(hardware, MODEL).pass_s([], 1, 40, 40)
    assert seconds > 2.0 * MODEL.parameters / hardware.memory_bytes_per_s * 0.98
