"""A recorded engine under the real Nsight Systems: passes are ranges, secrets are not kept."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest

from kvscope.base.files import read_json
from kvscope.base.ranges import DOMAIN, FORWARD_PASS
from kvscope.plan.grid import expand
from kvscope.tables.runfile import NSYS_EXPORT, NSYS_REPORT

pytestmark = [pytest.mark.nsys, pytest.mark.engine, pytest.mark.thorough]

CONFIG = Path(__file__).parents[4] / "config"
SECRET, WORD = "hunter2-is-no-password", "--api-key=hunter3"
SERVER = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # what is killed loses its last ranges
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
from vllm import LLM, SamplingParams
llm = LLM(sys.argv[1], load_format="kvscope_seeded", skip_tokenizer_init=True, dtype="float32",
          max_model_len=128, kv_cache_memory_bytes=1 << 24, enforce_eager=True,
          async_scheduling=False)
prompts = [{"prompt_token_ids": [*range(3, 3 + length)]} for length in (20, 30, 40)]
llm.generate(prompts, SamplingParams(max_tokens=12, ignore_eos=True, detokenize=False),
             use_tqdm=False)
print("served", flush=True)
"""
"""A user's program that serves a few requests."""
WAITS = "\nimport time\ntime.sleep(600)\n"


def record(place: Path, program: str, patch: pytest.MonkeyPatch) -> "subprocess.Popen[str]":
    """`kvscope record --nsys` of a program in a shell whose environment holds a secret."""
    patch.setenv("SECRET_TOKEN", SECRET)
    words = ["model=tiny-llama", "model.layers=2", "profiler=none"]
    (planned,) = expand(None, words, CONFIG).experiments
    (place / "model").mkdir()
    (place / "model" / "config.json").write_text(json.dumps(planned.experiment.model.hf_config()))
    (place / "server.py").write_text(program)
    server = [sys.executable, str(place / "server.py"), str(place / "model"), WORD]
    kvscope = [sys.executable, "-m", "kvscope.cli", "record", "--nsys"]
    return subprocess.Popen(
        [*kvscope, "--out", str(place / "recording"), "--", *server],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def recording(tmp_path_factory, nsys, require) -> Path:
    """A recorded, collected program that was stopped by SIGTERM when it had served."""
    require("vLLM", find_spec("vllm") is not None, "run `make env`")
    place: Path = tmp_path_factory.mktemp("server")
    with pytest.MonkeyPatch.context() as patch, record(place, SERVER + WAITS, patch) as server:
        assert server.stdout is not None
        lines = []
        for line in server.stdout:
            lines.append(line)
            if line.strip() == "served":
                time.sleep(1)  # for files that are written four times a second
                server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=120) == 0, "".join(lines)
    directory = place / "recording"
    assert (directory / NSYS_EXPORT).exists(), "".join(lines)
    made = subprocess.run(
        [sys.executable, "-m", "kvscope.cli", "collect", str(directory), "--perfetto"],
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    assert "CUDA was not traced" in made.stderr  # here, where there is no GPU
    return directory


def test_each_pass_is_a_range_that_begins_after_its_schedule(recording: Path) -> None:
    ranges = pd.read_parquet(recording / "nvtx_ranges.parquet")
    passes = ranges[(ranges["domain"] == DOMAIN) & (ranges["name"] == FORWARD_PASS)]
    steps = pd.read_parquet(recording / "steps.parquet")
    assert passes["step"].tolist() == steps["step"].tolist()
    assert {*passes["repeat"]} == {0}
    alignment = read_json(recording / "collect.json")["alignment"]
    assert (alignment["method"], alignment["passes"]) == ("forward passes", len(steps))
    assert alignment["residual_median_ns"] < 1e6


def test_no_environment_and_no_word_of_the_command_is_kept(recording: Path) -> None:
    assert not (recording / NSYS_REPORT).exists()
    for path in recording.iterdir():
        content = path.read_bytes()
        for secret in (SECRET, WORD):
            assert secret.encode() not in content, path.name


def test_an_export_of_an_earlier_server_is_left_out(recording: Path, tmp_path: Path) -> None:
    later = tmp_path / "later"
    later.mkdir()
    for path in recording.glob("segment-*"):
        (later / path.name).write_bytes(path.read_bytes())
    old = later / NSYS_EXPORT
    old.write_bytes((recording / NSYS_EXPORT).read_bytes())
    began_ns = read_json(recording / "run.json")["clock"]["run_start_utc_ns"]
    os.utime(old, ns=(began_ns - 1, began_ns - 1))
    made = subprocess.run(
        [sys.executable, "-m", "kvscope.cli", "collect", str(later)],
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0
    assert "of an earlier server" in made.stderr
    assert pd.read_parquet(later / "nvtx_ranges.parquet").empty
