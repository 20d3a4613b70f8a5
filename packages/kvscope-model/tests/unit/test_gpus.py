"""The modeled GPUs are the GPUs that plans know."""

import pytest

from kvscope.plan.gpu_estimate import MEMORY_BYTES, memory_bytes
from kvscope_model.hardware import files, hardware
from tests.unit.test_plan_gpu import GPUS


def test_the_gpus_are_those_that_can_be_modeled() -> None:
    assert sorted(MEMORY_BYTES) == GPUS == [name for name in files.names() if name != files.HOST]


@pytest.mark.parametrize("gpu", GPUS)
def test_the_memory_is_that_of_the_chips(gpu: str) -> None:
    """A plan takes the larger of the vendor's number and the card's own."""
    assert 0.93 * memory_bytes(gpu) < hardware.read(gpu).memory_bytes <= memory_bytes(gpu)
