"""`kvscope bytes` plans by releases of vLLM that it knows."""

from pathlib import Path

import pytest

from kvscope.engine.vllm.versions import unless_scheduling
from tests.unit.test_vllm_versions import NO_SCHEDULER, UNKNOWN, kvscope


@pytest.mark.parametrize("version", [*UNKNOWN, f"{NO_SCHEDULER[-1]}.0"])
def test_no_cache_is_planned_by_a_version_that_will_not_do(tmp_path: Path, version: str):
    made = kvscope(tmp_path, version, "bytes", "tiny-llama", "--gpu", "cpu")
    assert (made.returncode, made.stdout) == (2, "")
    assert made.stderr == f"kvscope: {unless_scheduling(version)}\n"
