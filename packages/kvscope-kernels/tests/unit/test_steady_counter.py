"""Whether a machine's counter is steady is known on every machine."""

from kvscope_kernels.engine.cpu.clock import has_steady_counter
from tests.unit.test_machines import Machine, machine

__all__ = ["machine"]


def test_a_counter_is_steady_or_is_not(machine: Machine) -> None:
    assert has_steady_counter() in (False, True)
