"""Experiments whose KV events cannot be traced."""

from pathlib import Path

import pytest

from kvscope.base.errors import BadInput
from kvscope.plan.grid import expand

CONFIG = Path(__file__).parents[4] / "config"


def test_a_device_without_kernels_is_refused() -> None:
    with pytest.raises(BadInput) as refused:
        expand(None, ["device=dry", "tracing=full"], CONFIG)
    for words in ("tracing (full) must be none on device dry", "change tracing"):
        assert words in str(refused.value)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadInput, match=r"tracing is 'some'.* must be one of full, none, sampled"):
        expand(None, ["tracing=some"], CONFIG)
