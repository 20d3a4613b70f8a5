"""Parts that benchmarks of the engine share: the environment of a measured process, a directory."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from kvscope.plan.experiment import Experiment
from kvscope.run.environment import measured_environment
from kvscope.run.provenance import hardware, versions

RESULTS = Path(__file__).parent / "results"


class Silent:
    """A progress display that shows nothing."""

    def advance(self, tokens: int) -> None:
        """Nothing to do."""


def in_measured_environment(experiment: Experiment) -> None:
    """Start this program again, unless it has the environment of a run of this experiment."""
    environment = measured_environment(experiment) | {"VLLM_LOGGING_LEVEL": "ERROR"}
    if any(os.environ.get(name) != value for name, value in environment.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def store(name: str, result: dict[str, Any], command: str) -> None:
    """Keep a result, with the command, versions and hardware that it was made with."""
    whole = result | {"command": command, "versions": versions(), "hardware": hardware()}
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
