"""A checkout on a rehearsed node, and experiments that are small enough for it."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from kvscope.base.files import read_json
from kvscope_rehearsal.command import vllm_version
from kvscope_rehearsal.node import Gpus, environment_of, make_node
from tests.conftest import Require
from tests.workflow.test_snakemake import ROOT, Checkout

# The smallest run with a preemption: Triton's interpreter takes 20 ms a program.
SMALL: dict[str, Any] = {
    "device": "cuda",
    "model": "tiny-llama",
    "model.layers": 1,
    "model.hidden_size": 64,
    "model.attention_heads": 2,
    "model.kv_heads": 1,
    "profiler": "none",
    "engine.attention": "instrumented",
    "engine.max_model_len": 32,
    "engine.max_num_batched_tokens": 32,
    "engine.max_num_seqs": 4,
    "cache.block_size": 8,
    "cache.blocks": 4,
    "workload.num_requests": 2,
    "workload.prompt_tokens": 12,
    "workload.output_tokens": 6,
}
HOST_POOL: dict[str, Any] = {"overflow.host_gib": None, "overflow.host_blocks": 8}


class Rehearsal(Checkout):
    """A checkout whose commands run on a node with rehearsed GPUs."""

    def __init__(self, path: Path, require: Require, gpus: Gpus | None = None) -> None:
        require("Triton", find_spec("triton") is not None, "run `make env-dev`")
        super().__init__(path)
        make_node(path / ".node", gpus or Gpus(), vllm_version())

    @property
    def environment(self) -> dict[str, str]:
        return environment_of(self.path / ".node", super().environment)

    def add_study(self, name: str, *grids: dict[str, Any]) -> None:
        """Write a study of these grids, which may leave out their names."""
        named = [{"name": f"grid{n}"} | grid for n, grid in enumerate(grids)]
        study = {"title": "What does a scarce cache cost on a GPU?", "description": "Rehearsed."}
        study |= {"figures": ["throughput", "kv_timeline"], "grids": named}  # type: ignore[dict-item]
        file = self.path / "config" / "study" / f"{name}.yaml"
        file.write_text(yaml.safe_dump(study), encoding="utf-8")

    @property
    def experiments(self) -> list[Path]:
        """The directories of all runs, by their ids."""
        return sorted((self.path / "results" / "experiments").iterdir())

    def facts(self, run: Path) -> dict[str, Any]:
        """The contents of run.json."""
        return dict(read_json(run / "run.json"))

    def table(self, run: Path, name: str) -> pd.DataFrame:
        """A table of a run, from where it lies."""
        collected = self.path / "results" / "tables" / run.name / f"{name}.parquet"
        return pd.read_parquet(collected if collected.exists() else run / f"{name}.parquet")

    def outputs(self, run: Path) -> dict[str, str]:
        """The SHA-256 of each request's tokens, in the first repeat."""
        rows = self.table(run, "requests").query("repeat == 0")
        return dict(zip(rows["request_id"], rows["output_sha256"], strict=True))

    def assert_valid(self) -> None:
        """Every run is, by `kvscope check`."""
        done = self.kvscope("check", *map(str, self.experiments))
        assert done.returncode == 0, done.stdout


def outcomes_of(script: Path, node: Path, require: Require) -> dict[str, str | None]:
    """Outcome of each program of a script, which runs on a node that is made for it."""
    for name in ("vllm", "triton"):
        require(name, find_spec(name) is not None, "run `make env-dev`")
    make_node(node, Gpus(), vllm_version())
    environment = environment_of(node, os.environ) | {"VLLM_LOGGING_LEVEL": "ERROR"}
    environment["PYTHONPATH"] += os.pathsep + str(ROOT)
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result: dict[str, str | None] = json.loads(done.stdout)
    return result
