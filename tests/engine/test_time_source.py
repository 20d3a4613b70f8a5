"""A run of device=cuda is measured or rehearsed, depending on what is beneath vLLM and torch."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is missing: run `make env`")
pytest.importorskip("vllm", reason="vLLM is missing: run `make env`")

import torch
import vllm.platforms

from kvscope.base.time_sources import MEASURED, MODELED, REHEARSED
from kvscope.engine.devices.platform import Platform, platform_of
from kvscope.plan.grid import expand
from kvscope.plan.layers import SHIPPED_CONFIG
from kvscope.run import lifecycle
from kvscope.run.lifecycle import run_facts
from kvscope.run.profiler import Profiling
from kvscope.run.session import Session, summary
from kvscope.tables.copies import DEVICE_CLOCK, HOST_CLOCK, VIRTUAL_CLOCK

pytestmark = pytest.mark.engine

VLLMS_OWN = type("NvmlCudaPlatform", (), {"__module__": "vllm.platforms.cuda"})
ANOTHERS = type("FakeH100", (), {"__module__": "another.platform"})
COUNT = "_cuda_getDeviceCount"


def platform(*overrides: str) -> Platform:
    return platform_of(expand(None, [*overrides], SHIPPED_CONFIG).experiments[0].experiment)


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Callable[[type, int | None], None]:
    """Let vLLM's platform be of this class, and the driver have so many GPUs; None: no driver."""

    def be(kind: type, gpus: int | None) -> None:
        monkeypatch.setattr(vllm.platforms, "current_platform", kind(), raising=False)
        if gpus is None:
            monkeypatch.delattr(torch._C, COUNT, raising=False)
        else:
            monkeypatch.setattr(torch._C, COUNT, lambda: gpus, raising=False)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    return be


@pytest.mark.parametrize(
    ("kind", "gpus", "source"),
    [
        *((VLLMS_OWN, 1, MEASURED), (VLLMS_OWN, 2, MEASURED)),
        *((VLLMS_OWN, 0, REHEARSED), (VLLMS_OWN, None, REHEARSED)),
        *((ANOTHERS, 1, REHEARSED), (ANOTHERS, 0, REHEARSED), (ANOTHERS, None, REHEARSED)),
    ],
)
def test_a_gpu_is_measured_only_by_vllms_platform_and_the_driver(
    there: Callable[[type, int | None], None], kind: type, gpus: int | None, source: str
) -> None:
    there(kind, gpus)
    result = platform("device=cuda")
    assert result.time_source == source
    assert (result.by_clock, result.copy_clock) == (True, DEVICE_CLOCK)


def test_other_devices_say_what_they_declare(
    there: Callable[[type, int | None], None],
) -> None:
    there(ANOTHERS, 0)
    cpu, dry = platform("device=cpu"), platform("device=dry")
    assert (cpu.time_source, cpu.copy_clock) == (MEASURED, HOST_CLOCK)
    assert (dry.time_source, dry.copy_clock) == (MODELED, VIRTUAL_CLOCK)


@pytest.mark.parametrize(("gpus", "source"), [(1, MEASURED), (0, REHEARSED)])
def test_recordings_ask_the_platform(
    there: Callable[[type, int | None], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    gpus: int,
    source: str,
) -> None:
    there(VLLMS_OWN, gpus)
    used = platform("device=cuda")
    monkeypatch.setattr(used, "accelerators", list[dict[str, Any]])
    session = Session(used.experiment, tmp_path, used, [], 0, 0)
    assert summary(session)["time_source"] == source
    engine: Any = SimpleNamespace(kv_blocks_total=1, host_blocks_total=0, kv_groups=())
    assert session.context(engine, 0).time_source == source
    profiling = Profiling("none", None)
    monkeypatch.setattr(lifecycle, "hardware", dict[str, Any])
    # Without a session no GPU is asked: the device's declaration counts.
    for told, expected in (({}, MEASURED), ({"time_source": "told"}, "told")):
        facts = run_facts(used.experiment, tmp_path, {**told}, "it crashed", profiling, 1.0)
        assert facts["time_source"] == expected
