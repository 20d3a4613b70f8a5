"""Policies that need a model whose layers are one KV group."""

from pathlib import Path

import pytest

from kvscope.base.errors import BadInput
from kvscope.plan.grid import expand

CONFIG = Path(__file__).parents[4] / "config"


@pytest.mark.parametrize(
    "words", [("overflow=activation", "overflow.host_blocks=40"), ("overflow=adaptive",)]
)
def test_a_model_of_several_kv_groups_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(BadInput, match=f"^{words[0]} needs .*KV group"):
        expand(None, ["model=tiny-interleaved", "batching=chunked", *words], CONFIG)
