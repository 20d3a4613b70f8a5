"""The size of a block of activations that a run records follows from its settings."""

import copy

import pytest

from kvscope.judge.records import Records
from kvscope.tables.verdict import VIOLATED
from tests.unit.test_facts_oracles import run, states

__all__ = ["run"]  # a fixture

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


def test_blocks_of_activations_have_the_size_that_the_settings_lead_to(run: Records) -> None:
    asked = run.settings | {"overflow": {"name": "activation", "host_blocks": 200}}
    facts = copy.deepcopy(run.facts)
    layers, hidden = (run.settings["model"][key] for key in ("layers", "hidden_size"))
    size = 4 * layers * hidden * run.block_size
    for found, wrong in ((size, False), (size + 1, True)):
        facts["engine"] |= {"activation_blocks_total": 200, "activation_block_bytes": found}
        words = states(run.variant(facts=facts, settings=asked), VIOLATED)
        assert ("activation_block_bytes is" in words.get("settings_differ", "")) == wrong
