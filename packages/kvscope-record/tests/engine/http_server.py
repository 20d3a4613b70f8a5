"""`vllm serve` as users start it: a tiny model with a tokenizer of its own, and a client of it."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import requests
from prometheus_client.parser import text_string_to_metric_families
from served import ABORTED, REQUESTS, lengths
from tokenizers import Tokenizer, models, pre_tokenizers

from kvscope.plan.grid import expand
from tests.engine.conftest import ROOT

NAME = "tiny"
COUNTED = (
    *("vllm:num_preemptions", "vllm:prefix_cache_queries", "vllm:prefix_cache_hits"),
    *("vllm:prompt_tokens", "vllm:generation_tokens"),
)
SETTINGS = [
    *("--served-model-name", NAME, "--load-format", "kvscope_seeded", "--dtype", "float32"),
    *("--max-model-len", "512", "--max-num-seqs", "8", "--max-num-batched-tokens", "128"),
    *("--block-size", "32", "--num-gpu-blocks-override", "20", "--enable-prefix-caching"),
    *("--kv-cache-memory-bytes", str(1 << 24), "--enforce-eager", "--host", "127.0.0.1"),
]


def make_model(directory: Path) -> None:
    """A model of random weights, whose tokens are the words w0, w1, ..."""
    words = ["model=tiny-llama", "model.layers=2", "profiler=none", "engine.max_model_len=512"]
    (planned,) = expand(None, words, ROOT / "config").experiments
    config = planned.experiment.model.hf_config()
    vocabulary = {f"w{number}": number for number in range(config["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    directory.mkdir()
    tokenizer.save(str(directory / "tokenizer.json"))
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0"}
    (directory / "tokenizer_config.json").write_text(json.dumps(described))
    (directory / "config.json").write_text(json.dumps(config))


def environment() -> dict[str, str]:
    """Environment of `vllm`."""
    return os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


def vllm(place: Path, *words: str) -> list[str]:
    """The command line of vLLM in this environment, with the model of a place."""
    program = str(Path(sys.executable).parent / "vllm")
    return [program, *(str(place / "model") if word == "MODEL" else word for word in words)]


@dataclass(frozen=True)
class HttpServer:
    """A server that answers."""

    place: Path
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def counts(self) -> dict[str, float]:
        """vLLM's own counts in /metrics, once no request is there."""
        while True:
            text = requests.get(f"http://127.0.0.1:{self.port}/metrics", timeout=60).text
            result: dict[str, float] = {}
            for metric in text_string_to_metric_families(text):
                counted = [s for s in metric.samples if not s.name.endswith("_created")]
                result[metric.name] = sum(sample.value for sample in counted)
            if not result["vllm:num_requests_running"] + result["vllm:num_requests_waiting"]:
                return {name: result[name] for name in COUNTED}
            time.sleep(0.1)

    def bench(self, *words: str) -> dict[str, Any]:
        """Report of `vllm bench serve` on its requests."""
        command = vllm(
            self.place, "bench", "serve", "--model", NAME, "--tokenizer", "MODEL", *words
        )
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--save-result"]
        command += [
            "--save-detailed",
            "--result-dir",
            str(self.place),
            "--result-filename",
            "bench",
        ]
        ended = subprocess.run(
            command, capture_output=True, text=True, env=environment(), cwd=self.place
        )
        assert ended.returncode == 0, ended.stderr[-3000:]
        result: dict[str, Any] = json.loads((self.place / "bench").read_text())
        return result

    def serve(self) -> list[list[str]]:
        """The streamed words of each request of `lengths`; the client of one leaves early."""
        return asyncio.run(self._serve())

    async def _serve(self) -> list[list[str]]:
        async with self.client() as client:
            return await asyncio.gather(*(self._stream(client, n) for n in range(REQUESTS)))

    async def _stream(self, client: openai.AsyncOpenAI, number: int) -> list[str]:
        prompt, tokens = lengths(number)
        await asyncio.sleep(number * 0.02)
        stream = await client.completions.create(
            model=NAME,
            prompt=prompt,
            max_tokens=tokens,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        words: list[str] = []
        async for chunk in stream:
            words += chunk.choices[0].text.split()
            if number == ABORTED and len(words) > 10:
                await stream.close()
                break
        return words

    def complete(self, prompt: list[int], tokens: int) -> None:
        """Serve one request, and wait for it."""
        asked: Any = {"model": NAME, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
        address = f"http://127.0.0.1:{self.port}/v1/completions"
        requests.post(address, json=asked, timeout=60).raise_for_status()

    def client(self) -> openai.AsyncOpenAI:
        """A client of OpenAI's, for this server."""
        address = f"http://127.0.0.1:{self.port}/v1"
        return openai.AsyncOpenAI(base_url=address, api_key="none", max_retries=0)


@contextmanager
def serving(place: Path, *recorder: str) -> Iterator[HttpServer]:
    """Start `vllm serve` behind the words of a recorder, if any; it is ended afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = place / f"{port}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*recorder, *vllm(place, "serve", "MODEL", *SETTINGS, "--port", str(port))],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment(),
            start_new_session=True,
        )
    try:
        while not _answers(port):
            assert process.poll() is None, log.read_text(errors="replace")[-3000:]
            time.sleep(0.2)
        yield HttpServer(place, process, port, log)
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(port: int) -> bool:
    try:
        return requests.get(f"http://127.0.0.1:{port}/health", timeout=60).ok
    except requests.ConnectionError:
        return False
