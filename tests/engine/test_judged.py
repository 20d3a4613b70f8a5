"""Every run is held against itself: faults of the recorder contradict something it has recorded."""

import pytest

from tests.warm import Warm

from . import mutants
from .conftest import SCARCE, Runner

pytestmark = pytest.mark.engine

SWAP = ("overflow=swap", "overflow.host_blocks=64")
# Recomputing takes several passes.
RECOMPUTE = ("overflow=recompute", "batching=chunked", "batching.chunk_tokens=48")


def test_a_faulty_recorder_of_swaps_violates_an_oracle(run: Runner, warm: Warm) -> None:
    result = warm.call(mutants.main, run(SCARCE, *SWAP).directory / "experiment.yaml")
    assert result.pop("nothing") == []
    # A swapped request recomputes nothing, and its first pass gives it a token.
    of_recomputing = {"nothing is recomputed", "only the first pass resumes"}
    assert {name for name, oracles in result.items() if not oracles} <= of_recomputing


def test_a_faulty_recorder_of_recomputation_violates_an_oracle(run: Runner, warm: Warm) -> None:
    result = warm.call(mutants.main, run(SCARCE, *RECOMPUTE).directory / "experiment.yaml")
    assert result.pop("nothing") == []
    of_swaps = {name for name in result if "cop" in name or "host pool" in name}
    assert {name for name, oracles in result.items() if not oracles} <= of_swaps
