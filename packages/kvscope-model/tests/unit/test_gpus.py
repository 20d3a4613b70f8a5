"""The GPUs that are modeled are those that plans know."""

import pytest

from kvscope.plan.gpu_estimate import MEMORY_BYTES, memory_bytes
from kvscope_model.hardware import files, hardware
from tests.unit.test_plan_gpu import GPUS


def test_the_gpus_are_those_that_can_be_modeled() -> None:
    assert sorted(MEMORY_BYTES) == GPUS == [name for name in files.names() if name != files.HOST]


@pytest.mark.parametrize("gpu", GPUS)
def test_the_memory_is_that_of_the_chips(gpu: str) -> None:
    """Of the vendor's number and of what the card says, a plan knows the larger one."""
    assert 0.93 * memory_bytes(gpu) < hardware.read(gpu).memory_bytes <= memory_bytes(gpu)
