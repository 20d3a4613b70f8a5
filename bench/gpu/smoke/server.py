"""A server of vLLM, recorded by `kvscope record`, asked over HTTP, and checked."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pandas as pd
import requests

from kvscope.plan.grid import expand
from kvscope.tables.runfile import read_run
from smoke.place import REHEARSED, ROOT, WORK, store
from smoke.programs import end, python

RECORDING = WORK / "recording"
NEW_TOKENS = 3 if REHEARSED else 64
PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [6, 7, 8, 9], [9, 8, 7, 6, 5]] * (1 if REHEARSED else 8)
WRITTEN_S = 2.0  # a recording is written four times a second
SOCKETS = "/tmp"  # of vLLM's processes: a socket's path has 107 characters at most
END_S = 15.0  # for a server to end by itself
IN_SMALL = ("model.layers=1", "model.hidden_size=64", "model.attention_heads=2", "model.kv_heads=1")
SETTINGS = (
    *("--skip-tokenizer-init", "--load-format", "kvscope_seeded", "--dtype", "float32"),
    *("--max-model-len", "128", "--max-num-seqs", "16", "--max-num-batched-tokens", "256"),
    *("--block-size", "16", "--num-gpu-blocks-override", "40", "--enforce-eager"),
    *("--host", "127.0.0.1", "--served-model-name", "tiny", "--no-async-scheduling"),
    *("--attention-backend", "TRITON_ATTN"),
)


def main(seconds: float) -> list[str]:
    """Serve the prompts at once; the recording has each request and token, and oracles hold."""
    until = time.monotonic() + seconds - END_S
    model = WORK / "model"
    write_model(model)
    with server(model, until) as address, ThreadPoolExecutor(len(PROMPTS)) as clients:
        made = [*clients.map(lambda prompt: ask(address, prompt, seconds), PROMPTS)]
        time.sleep(WRITTEN_S)
    faults = [] if made == [NEW_TOKENS] * len(PROMPTS) else [f"tokens of the requests: {made}"]
    for word in ("collect", "analyse", "check"):
        log = WORK / f"server-{word}.log"
        code = python(["-m", "kvscope.cli", word, str(RECORDING)], log, until - time.monotonic())
        if code:
            last = (log.read_text(encoding="utf-8").splitlines() or ["it said nothing"])[-1]
            return [*faults, f"kvscope {word}: exit {code}: {last}"]
    result = numbers()
    store("server", result)
    if (result["requests"], result["output_tokens"]) != (len(made), sum(made)):
        faults.append(f"recorded {result['requests']} requests, {result['output_tokens']} tokens")
    return faults


def write_model(directory: Path) -> None:
    """A config.json, all that a server without a tokenizer needs."""
    words = ["model=tiny-llama", *(IN_SMALL if REHEARSED else ())]
    experiment = expand(None, words, ROOT / "config").experiments[0].experiment
    directory.mkdir()
    text = json.dumps(experiment.model.hf_config())
    (directory / "config.json").write_text(text, encoding="utf-8")


@contextmanager
def server(model: Path, until: float) -> Iterator[str]:
    """The address of a recorded server, which is interrupted at the end."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    vllm = [sys.executable, "-m", "vllm.entrypoints.cli.main"]
    serve = [*vllm, "serve", str(model), *SETTINGS, "--port", str(port)]
    command = [sys.executable, "-m", "kvscope.cli", "record", "--out", str(RECORDING), "--", *serve]
    environment = os.environ | {"VLLM_RPC_BASE_PATH": SOCKETS}
    with (WORK / "server.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=ROOT, env=environment, start_new_session=True
        )
        try:
            wait_for(f"http://127.0.0.1:{port}", process, until)
            yield f"http://127.0.0.1:{port}"
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
        finally:
            end(process)


def wait_for(address: str, process: "subprocess.Popen[bytes]", until: float) -> None:
    """Wait until the server answers."""
    while time.monotonic() < until and process.poll() is None:
        with suppress(requests.ConnectionError):
            if requests.get(f"{address}/health", timeout=5).status_code == 200:
                return
        time.sleep(0.2)
    last = (WORK / "server.log").read_text(encoding="utf-8").splitlines()[-1:]
    raise RuntimeError(f"the server does not answer: {last}")


def ask(address: str, prompt: list[int], seconds: float) -> int:
    """Tokens that the server says it has made for a prompt."""
    body: dict[str, Any] = {"model": "tiny", "prompt": prompt, "max_tokens": NEW_TOKENS}
    body |= {"temperature": 0, "ignore_eos": True, "detokenize": False, "return_token_ids": True}
    answer = requests.post(f"{address}/v1/completions", json=body, timeout=seconds)
    answer.raise_for_status()
    return int(answer.json()["usage"]["completion_tokens"])


def numbers() -> dict[str, Any]:
    """Requests, tokens, passes and preemptions of the recording."""
    rows = pd.read_parquet(RECORDING / "requests.parquet")
    return {
        "requests": len(rows),
        "output_tokens": int(rows["output_tokens"].sum()),
        "passes": len(pd.read_parquet(RECORDING / "steps.parquet")),
        "preemptions": len(pd.read_parquet(RECORDING / "preemptions.parquet")),
        "time_source": read_run(RECORDING)["time_source"],
    }
