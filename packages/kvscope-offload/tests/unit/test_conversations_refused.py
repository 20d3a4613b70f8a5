"""Conversations are not what this device serves."""

import pytest

from kvscope.base.errors import BadInput
from tests.unit.test_workload_requests import experiment


def test_conversations_are_refused() -> None:
    with pytest.raises(BadInput, match="which device=offload cannot"):
        experiment("workload=conversation", "device=offload")
