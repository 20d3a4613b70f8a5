"""The notebook of examples/ reads a small study of vLLM's scheduler alone."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from kvscope.plan.layers import SHIPPED

ROOT = Path(__file__).parents[2]
STUDY = """
title: A small study
grids:
  - name: room
    set:
      device: dry
      model: opt-13b
      batching: chunked
      workload: fixed
      workload.num_requests: 4
      workload.prompt_tokens: 128
      workload.output_tokens: 64
      engine.max_model_len: 256
      engine.max_num_batched_tokens: 256
      cache.block_size: 16
    product:
      cache.blocks: [20, 128]
"""

pytestmark = [pytest.mark.workflow, pytest.mark.engine, pytest.mark.thorough]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, require) -> Path:
    """A directory with the results of a study that has the quickstart's name."""
    require("vLLM", find_spec("vllm") is not None, "run `make env`")
    require("Snakemake", find_spec("snakemake") is not None, "run `make env`")
    directory = tmp_path_factory.mktemp("notebook")
    study = directory / "config" / "study" / "quickstart.yaml"
    study.parent.mkdir(parents=True)
    study.write_text(STUDY)
    shipped = [f"--snakefile={SHIPPED / 'Snakefile'}", f"--profile={SHIPPED / 'profiles/local'}"]
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", *shipped, "--config", "study=quickstart"],
        cwd=directory,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


@pytest.mark.parametrize("place", [".", "examples"])
def test_the_notebook_runs_and_finds_what_a_small_cache_costs(place: str, results: Path):
    """Run it as `jupyter execute` does, in the notebook's directory, beside the results."""
    (results / place).mkdir(exist_ok=True)
    notebook = nbformat.read(ROOT / "examples" / "results.ipynb", as_version=4)
    NotebookClient(
        notebook,
        timeout=120,
        kernel_name="python3",
        resources={"metadata": {"path": str(results / place)}},
    ).execute()
    printed = [
        output["text"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if output["output_type"] == "stream"
    ]
    assert " blocks" in printed[-2]
    count, *_ = printed[-1].split()
    assert int(count) > 0  # the scarce cache preempts


def test_the_notebook_is_kept_without_outputs():
    notebook = nbformat.read(ROOT / "examples" / "results.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
