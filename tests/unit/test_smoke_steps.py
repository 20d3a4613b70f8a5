"""Limits of the smoke test's steps, records of a killed step, and the pins of its pack."""

import re
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest
from smoke import campaigns, engine, place, steps

ROOT = Path(__file__).parents[2]
PIN = re.compile(r"^([\w.-]+)==(\S+)", re.M)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module in (place, steps):
        monkeypatch.setattr(module, "WORK", tmp_path)
    return tmp_path


def test_the_limits_of_all_steps_are_below_the_whole() -> None:
    script = (ROOT / "bench/gpu/smoke.sh").read_text()
    whole = int(re.findall(r"TOTAL_S:-(\d+)", script)[0])
    others = [int(seconds) for seconds in re.findall(r"\b(?:UNPACK|REPORT)_S=(\d+)", script)]
    assert len(others) == 2
    assert sum(others) + steps.IMPORTS_S + sum(steps.LIMITS_S.values()) <= whole <= 900


def test_a_killed_step_leaves_its_stored_results(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def main(seconds: float) -> list[str]:
        place.store("slow", {"found": 1})
        time.sleep(60)
        return []

    monkeypatch.setattr(steps, "set_threads", lambda count: None)  # imports PyTorch
    module = types.ModuleType("smoke.slow")
    monkeypatch.setattr(module, "main", main, raising=False)
    monkeypatch.setitem(sys.modules, "smoke.slow", module)
    outcome = steps.run("slow", 1.0, "fork")
    assert outcome.outcome == place.FAILED
    assert outcome.faults == ["killed at its limit of 1 s"]
    assert place.stored("slow") == {"found": 1}


@pytest.mark.packages
def test_runs_without_time_are_neither_right_nor_wrong(work: Path) -> None:
    assert engine.main(seconds=campaigns.MARGIN_S + 1) == []
    outcomes = {row["outcome"] for row in place.stored("engine")}
    assert outcomes == {place.NO_TIME}


def test_other_tokens_are_a_fault() -> None:
    ample: dict[str, Any] = {
        "run": "ample",
        "tokens": {"0": "a", "1": "b"},
        "tokens_of": None,
        "faults": [],
    }
    scarce: dict[str, Any] = {
        "run": "swap",
        "tokens": {"0": "a", "1": "c"},
        "tokens_of": "ample",
        "faults": [],
    }
    campaigns.compare_tokens(scarce, [ample, scarce])
    assert scarce["same_tokens"] == "1 of 2"
    assert scarce["outcome"] == place.FAILED


def test_the_pack_has_the_versions_of_the_environment() -> None:
    def pins(path: str) -> dict[str, str]:
        result = PIN.findall((ROOT / path).read_text())
        return {name.lower().replace("_", "-"): version for name, version in result}

    packed, pinned = pins("bench/gpu/pack.txt"), pins("envs/kvscope.txt") | pins("envs/cpu.txt")
    assert {name: packed[name] for name in packed} == {name: pinned.get(name) for name in packed}
