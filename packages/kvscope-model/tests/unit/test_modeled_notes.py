"""Notes of a plan on keys that change nothing on the modeled device."""

from pathlib import Path

from kvscope.plan import effects
from kvscope.plan.grid import expand
from tests.unit.keys_walked import SMALL

CONFIG = Path(__file__).parents[4] / "config"


def notes(*words: str) -> list[str]:
    on_modeled = ("device=modeled", "device.kernels=vllm")
    return effects.notes(expand(None, [*on_modeled, *SMALL, *words], CONFIG))


def test_a_plan_names_a_varied_key_without_effect() -> None:
    assert notes() == []
    assert notes("device.threads=2") == [
        "device.threads changes no result on a modeled device, which computes nothing of the model"
    ]
    (note,) = notes("cache.layout=by_layer,by_block", "overflow=recompute,swap")
    assert note.startswith(
        "cache.layout changes no result in 2 of 4 experiments, with overflow=recompute"
    )
