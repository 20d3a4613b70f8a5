"""Values made of other keys' values."""

import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.base.errors import BadInput
from kvscope.plan.expressions import resolve

CONFIG = {"seed": 5, "half": 0.5, "name": "m", "none": None, "cache": {"block_size": 16}}


def value(expression: str, **more: Any) -> Any:
    """Value of `${expression}` beside CONFIG."""
    return resolve(CONFIG | more | {"x": f"${{{expression}}}"}, lambda key: "here")["x"]


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("seed", 5),
        ("half", 0.5),
        ("name", "m"),
        ("none", None),
        ("cache.block_size", 16),
        ("2 * ceil((seed + 28) / cache.block_size)", 6),
        ("floor(-seed / 2)", -3),
        ("min(seed, 3) + max(half, 1, 2)", 5),
        ("0.1 * 30", 3),
        ("seed / 2", 2.5),
    ],
)
def test_an_expression_is_arithmetic_on_keys(expression: str, result: Any) -> None:
    found = value(expression)
    assert (found, type(found)) == (result, type(result))


def test_expressions_may_name_each_other_and_stand_in_texts() -> None:
    assert value("y + 1", y="${2 * seed}") == 11
    assert resolve({"a": 1, "x": "n-${a}-${a + 1}"}, str)["x"] == "n-1-2"


@pytest.mark.parametrize(
    "expression",
    [
        "", "seed +", "seed ** 2", "seed[0]", "f'{seed}'", "__import__('os')", "(lambda: 1)()",
        "seed if seed else 1", "[1]", "1 < 2", "ceil()", "ceil(1, 2)", "min(1)", "ceil(*cache)",
        "True + 1", "seed // 2", "seed.real", "cache", "none + 1", "name * 2", "1 / 0", "1e13",
        "99999999 * 99999999", "(" * 150 + ")" * 150, "1" * 201, "x",
    ],
)  # fmt: skip
def test_expressions_other_than_arithmetic_on_keys_are_refused_by_name(expression: str) -> None:
    with pytest.raises(BadInput, match=r"^x is ['\"]\$\{.* \(here\) but .*[^.]$"):
        value(expression)


def test_chains_that_grow_are_refused() -> None:
    doubled = {f"k{n}": f"${{k{n + 1} + k{n + 1}}}" for n in range(45)} | {"k45": 1}
    with pytest.raises(BadInput, match="comes to more than"):
        resolve(doubled, str)
    texts = {f"k{n}": f"${{k{n + 1}}}${{k{n + 1}}}" for n in range(45)} | {"k45": "text"}
    with pytest.raises(BadInput, match="letters"):
        resolve(texts, str)
    chain = {f"k{n}": f"${{k{n + 1}}}" for n in range(3000)} | {"k3000": 1}
    with pytest.raises(BadInput, match="ends a chain of more than 50 keys"):
        resolve(chain, str)


numbers = st.integers(-99, 99).map(str) | st.sampled_from(["seed", "half", "cache.block_size"])
expressions = st.recursive(
    numbers,
    lambda inner: (
        st.tuples(inner, st.sampled_from("+-*/"), inner).map("({0[0]} {0[1]} {0[2]})".format)
        | st.tuples(st.sampled_from(["ceil", "floor"]), inner).map("{0[0]}({0[1]})".format)
    ),
    max_leaves=8,
)


@given(expressions)
def test_the_value_is_what_arithmetic_gives(expression: str) -> None:
    names = {"seed": 5, "half": 0.5, "ceil": math.ceil, "floor": math.floor}
    try:
        expected = eval(expression.replace("cache.block_size", "16"), names)  # of ours alone
    except ZeroDivisionError:
        expected = math.inf
    if abs(expected) > 1e9:  # or a part of it is too large
        return
    rounded = any(name in expression for name in ("ceil", "floor"))  # which magnify rounding
    with suppress(BadInput):
        result = value(expression)
        assert rounded or result == pytest.approx(expected, rel=1e-9, abs=1e-9)
