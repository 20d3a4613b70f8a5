"""What `lint-imports` and `deptry` do not see: imports at run time, and the pins."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize(
    "module",
    [
        *("cli", "plan.grid", "results", "collect.collector", "analyse.experiment"),
        "report.study",
    ],
)
def test_importing_the_reading_side_loads_no_vllm(module):
    program = f"import sys, kvscope.{module}; print({{'torch', 'vllm'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr


def test_every_dependency_is_pinned():
    declared = {re.findall(r"[\w-]+", text)[0].lower() for text in PROJECT["dependencies"]}
    pins = "".join(path.read_text() for path in (ROOT / "envs").glob("*.txt")).lower()
    assert declared == {name for name in declared if f"\n{name}==" in pins}
