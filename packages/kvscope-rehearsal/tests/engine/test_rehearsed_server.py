"""`kvscope record -- vllm serve` on vLLM's CUDA platform, made of a CPU."""

import json
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import requests

from kvscope.plan.grid import expand
from rehearsals import SMALL, Rehearsal
from tests.workflow.test_snakemake import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

PATIENCE_S = 600.0
PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [6, 7, 8, 9], [9, 8, 7, 6, 5]]
NEW_TOKENS = 3
SETTINGS = [
    *("--skip-tokenizer-init", "--load-format", "kvscope_seeded", "--dtype", "float32"),
    *("--max-model-len", "64", "--max-num-seqs", "4", "--max-num-batched-tokens", "64"),
    *("--block-size", "16", "--num-gpu-blocks-override", "9", "--enforce-eager"),
    *("--host", "127.0.0.1", "--served-model-name", "tiny", "--no-async-scheduling"),
]


def write_model(directory: Path) -> None:
    """A config.json, all that a server without a tokenizer needs."""
    words = [f"{key}={value}" for key, value in SMALL.items() if key.startswith("model")]
    (planned,) = expand(None, words, ROOT / "config").experiments
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(planned.experiment.model.hf_config()))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def ask(address: str, prompt: list[int]) -> int:
    """Tokens that the server says it has made for a prompt."""
    body: dict[str, Any] = {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": NEW_TOKENS,
        "temperature": 0,
    }
    more: dict[str, Any] = {"ignore_eos": True, "detokenize": False, "return_token_ids": True}
    answer = requests.post(f"{address}/v1/completions", json=body | more, timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["completion_tokens"])


def test_a_recorded_server_is_rehearsed_too(tmp_path, require):
    rehearsal = Rehearsal(tmp_path / "checkout", require)
    model, recording, port = tmp_path / "model", tmp_path / "recording", free_port()
    write_model(model)
    serve = ["vllm", "serve", str(model), *SETTINGS, "--port", str(port)]
    command = [sys.executable, "-m", "kvscope.cli", "record", "--out", str(recording), "--", *serve]
    log = (tmp_path / "log").open("w+")
    server = subprocess.Popen(
        command,
        cwd=rehearsal.path,
        env=rehearsal.environment | {"VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"},
        stdout=log,
        stderr=log,
    )
    address, deadline = f"http://127.0.0.1:{port}", time.monotonic() + PATIENCE_S
    try:
        while True:
            with suppress(requests.ConnectionError):
                if requests.get(f"{address}/health", timeout=PATIENCE_S).status_code == 200:
                    break
            assert server.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        with ThreadPoolExecutor(len(PROMPTS)) as clients:
            made = [*clients.map(ask, [address] * len(PROMPTS), PROMPTS)]
        time.sleep(5)  # for files that are written four times a second
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(PATIENCE_S)
    assert made == [NEW_TOKENS] * len(PROMPTS)
    for word in ("collect", "analyse", "check"):
        done = rehearsal.kvscope(word, str(recording))
        assert done.returncode == 0, done.stdout
    assert rehearsal.facts(recording)["time_source"] == "rehearsed"
    rows = rehearsal.table(recording, "requests")
    assert sorted(rows["prompt_tokens"]) == sorted(map(len, PROMPTS))
    assert set(rehearsal.table(recording, "steps")["time_source"]) == {"rehearsed"}
