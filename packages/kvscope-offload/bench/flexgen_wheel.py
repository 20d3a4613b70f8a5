"""The published FlexGen with the workload of an experiment: external rows beside kvscope's own.

    python bench/flexgen_wheel.py EXPERIMENT.yaml --out DIR [--rows published …]

EXPERIMENT.yaml is of device offload_cuda; FlexGen's wheel has to be importable, which
`bench/hybrid.sh --flexgen` sees to. FlexGen gets the experiment's prompts, its random weights,
as many batches as it has mini-batches, K and V on the host; neither a tokenizer nor a checkpoint.
A row is a repeat's prefill and decoding passes, warmed up and repeated as `kvscope run` does:

    published        as it is: K and V in pageable memory
    pinned           K and V pinned
    cpu_attention    attention of decoding on the CPU, in float32, where K and V are

As in FlexGen's own benchmark the cache is allocated before the first pass, so pageable memory is
first touched while prefilling; the embeddings are streamed like the layers. With attention on the
CPU and several batches, FlexGen's default (sep_layer) overwrites the K and V of one batch with the
next one's before they are used, and gives wrong tokens; without it there are two buffers, and the
tokens are right, so that is what is run. DIR/ID.json has the rows and what they were made with.
"""

import argparse
import datetime
import gc
import hashlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from math import isnan
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from kvscope.base.errors import BadInput, KvscopeError
from kvscope.base.files import write_json
from kvscope.base.statistics import half_width, half_width_share
from kvscope.plan.experiment import Experiment, load
from kvscope.plan.models import Model
from kvscope.run.provenance import hardware, versions
from kvscope.workload.requests import Request, build
from kvscope_offload.cost import Sizes
from kvscope_offload.device import OffloadCuda
from kvscope_offload.generation import Length, Limits, rounds
from kvscope_offload.host_memory import host_tensor
from kvscope_offload.policy import OffloadPolicy
from kvscope_offload.weights import Source, seeded

try:
    from flexgen.compression import CompressionConfig
    from flexgen.flex_opt import OptLM, Policy
    from flexgen.opt_config import OptConfig
    from flexgen.pytorch_backend import TorchDevice, TorchDisk, TorchMixedDevice, TorchTensor
    from flexgen.timer import timers
    from flexgen.utils import ExecutionEnv, np_dtype_to_torch_dtype
except ImportError as error:
    sys.exit(f"FlexGen cannot be imported ({error}): bench/hybrid.sh --flexgen fetches it.")

VERSION = "0.1.8"
WHEEL_SHA256 = "d08f916bfb9ef295123c40d46ea14a26540600047fb0c02c146a8b5ef40e02c5"
CODE_SHA256 = "c9a7175a664cec2499083383cbbca94ebeb4d8da91cb98ff32637200a04e1bcf"

GPU = "cuda:0"
NO_PADDING = -1  # in place of the id of padding: each id of a prompt counts
WEIGHTS = {
    "embed_tokens": "embedding",
    "embed_positions": "positions",
    "layer_norm": "norm",
    "self_attn_layer_norm": "attention_norm",
    "self_attn.q_proj": "query",
    "self_attn.k_proj": "key_value",
    "self_attn.v_proj": "key_value",
    "self_attn.out_proj": "output",
    "final_layer_norm": "mlp_norm",
    "fc1": "up",
    "fc2": "down",
}


@dataclass(frozen=True)
class Row:
    """A way to run FlexGen."""

    words: str
    pinned: bool = False
    cpu_attention: bool = False


ROWS = {
    "published": Row("FlexGen 0.1.8, as published (external)"),
    "pinned": Row("FlexGen 0.1.8, K and V pinned (external)", pinned=True),
    "cpu_attention": Row("FlexGen 0.1.8, attention on the CPU (external)", cpu_attention=True),
}


class PinnedHost(TorchDevice):  # type: ignore[misc]
    """FlexGen's host, whose K and V are pinned, without rounding up to a power of two."""

    def allocate(self, shape: Any, dtype: Any, pin_memory: Any = None, name: Any = None) -> Any:
        """A tensor; FlexGen asks for pageable memory for the cache alone."""
        if pin_memory is not False:
            return super().allocate(shape, dtype, pin_memory, name)
        data = host_tensor(shape, np_dtype_to_torch_dtype[dtype], pinned=True)
        return TorchTensor.create_from_torch(data, self, name)


class TimedLM(OptLM):  # type: ignore[misc]
    """FlexGen's model, and when its passes began and ended."""

    def generation_loop_overlap_single_batch(self) -> None:
        """Its schedule for one batch."""
        self._timed(super().generation_loop_overlap_single_batch)

    def generation_loop_overlap_multi_batch(self) -> None:
        """Its schedule for several."""
        self._timed(super().generation_loop_overlap_multi_batch)

    def _timed(self, loop: Callable[[], None]) -> None:
        timers("generate").reset()
        began = time.perf_counter()
        loop()
        self.marks = [began, *timers("generate").stop_times[:-1], time.perf_counter()]

    @property
    def passes_s(self) -> list[float]:
        """Seconds of the last call's passes: the prompts', then one for each further token."""
        return [end - start for start, end in zip(self.marks, self.marks[1:], strict=False)]


@dataclass(frozen=True)
class Work:
    """An experiment as FlexGen sees it."""

    experiment: Experiment
    policy: OffloadPolicy
    prompts: list[list[int]]
    output_tokens: int

    @classmethod
    def of(cls, experiment: Experiment) -> "Work":
        """The work of an experiment; BadInput if FlexGen cannot do it."""
        device, requests = experiment.device, build(experiment)
        if not isinstance(device, OffloadCuda):
            raise BadInput(f"device.name ({device.name}) must be offload_cuda for a row of FlexGen")
        policy = device.offload_policy(experiment.cache_blocks * experiment.block_bytes)
        for complaint in complaints(experiment, policy, requests):
            raise BadInput(f"{experiment.id}: {complaint}")
        prompts = [request.prompt_token_ids.tolist() for request in requests]
        return cls(experiment, policy, prompts, requests[0].output_tokens)

    @property
    def batches(self) -> int:
        """FlexGen's batches: what its schedule takes where kvscope's takes mini-batches."""
        return self.policy.minibatches

    @property
    def sizes(self) -> dict[str, int]:
        """Requests and tokens."""
        return {
            "requests": len(self.prompts),
            "prompt_tokens": len(self.prompts[0]),
            "output_tokens": self.output_tokens,
            "gpu_batches": self.batches,
            "gpu_batch_size": len(self.prompts) // self.batches,
        }


def complaints(
    experiment: Experiment, policy: OffloadPolicy, requests: list[Request]
) -> Iterator[str]:
    """Why FlexGen cannot do an experiment."""
    model = experiment.model
    opt = model.family == "opt" and model.tie_word_embeddings and model.dtype == "float16"
    square = model.kv_heads * model.head_size == model.hidden_size
    if not (opt and square and model.intermediate_size == 4 * model.hidden_size):
        yield (
            f"FlexGen serves OPT in float16 with an MLP four times as wide as the model, which "
            f"model={model.name} ({model.family}, {model.dtype}) is not"
        )
    lengths = [Length(len(r.prompt_token_ids), r.output_tokens) for r in requests]
    if len(set(lengths)) > 1 or any(request.arrival_s for request in requests):
        yield "FlexGen takes requests of one length that arrive at once: set workload=fixed"
    if len(requests) % policy.minibatches:
        yield (
            f"workload.num_requests ({len(requests)}) must be a multiple of device.minibatches "
            f"({policy.minibatches}) for FlexGen, whose batches are of one size"
        )
    if policy.device_gib or not policy.host_cache:
        yield "FlexGen's rows keep all K and V on the host: set device.policy=flexgen"
    engine, block_size = experiment.engine, experiment.cache.block_size
    limits = Limits(engine.max_num_seqs, engine.max_num_batched_tokens, experiment.cache_blocks)
    if len(rounds(policy, Sizes.of(model), model.layers, block_size, lengths, limits)) > 1:
        yield (
            "FlexGen's rows compute all requests as one batch: raise engine.max_num_seqs, "
            "engine.max_num_batched_tokens or cache.blocks"
        )


def opt_config(model: Model) -> Any:
    """A model in FlexGen's words."""
    return OptConfig(
        name=model.name,
        num_hidden_layers=model.layers,
        max_seq_len=model.max_position_embeddings,
        hidden_size=model.hidden_size,
        n_head=model.attention_heads,
        input_dim=model.hidden_size,
        ffn_embed_dim=model.intermediate_size,
        vocab_size=model.vocab_size,
        pad_token_id=NO_PADDING,
        dtype=np.float16,
    )


def flexgen_policy(work: Work, row: Row) -> Any:
    """Weights where the experiment has them, the cache on the host, hidden states on the GPU."""
    weights_on_gpu = 0 if work.policy.streamed else 100
    uncompressed = CompressionConfig(num_bits=16, group_size=64, group_dim=0, symmetric=False)
    return Policy(
        gpu_batch_size=work.sizes["gpu_batch_size"],
        num_gpu_batches=work.batches,
        w_gpu_percent=weights_on_gpu,
        w_cpu_percent=100 - weights_on_gpu,
        cache_gpu_percent=0,
        cache_cpu_percent=100,
        act_gpu_percent=100,
        act_cpu_percent=0,
        overlap=True,
        sep_layer=not row.cpu_attention,  # see above
        pin_weight=True,
        cpu_cache_compute=row.cpu_attention,
        attn_sparsity=1.0,
        compress_weight=False,
        comp_weight_config=uncompressed,
        compress_cache=False,
        comp_cache_config=uncompressed,
    )


def fill_from(source: Source) -> Callable[[Any, str], None]:
    """Replacement of `TorchTensor.load_from_np_file`: a file's name says which weight it is."""

    def fill(tensor: Any, file: str) -> None:
        name, _, suffix = Path(file).name.removeprefix("decoder.").rpartition(".")
        layer, shape = "", tuple(tensor.shape)
        if name.startswith("layers."):
            _, layer, name = name.split(".", 2)
        ours = WEIGHTS[name] + ("_bias" if suffix == "bias" else "")
        ours = f"{layer}.{ours}" if layer else ours
        half = ("self_attn.k_proj", "self_attn.v_proj")
        if name in half:
            both = source(ours, (2 * shape[0], *shape[1:]))
            tensor.data.copy_(both.chunk(2)[half.index(name)])
        else:
            tensor.data.copy_(source(ours, shape))

    return fill


@contextmanager
def model(work: Work, row: Row, source: Source) -> Iterator[TimedLM]:
    """FlexGen's model with these weights."""
    given, TorchTensor.load_from_np_file = TorchTensor.load_from_np_file, fill_from(source)
    try:
        with tempfile.TemporaryDirectory() as directory:
            weights = Path(directory) / f"{work.experiment.model.name}-np"
            weights.mkdir()
            (weights / "decoder.embed_positions.weight").touch()  # else FlexGen downloads all
            gpu, cpu = TorchDevice(GPU), (PinnedHost if row.pinned else TorchDevice)("cpu")
            disk = TorchDisk(str(Path(directory) / "disk"))
            try:
                env = ExecutionEnv(gpu, cpu, disk, TorchMixedDevice([gpu, cpu, disk]))
                config, policy = opt_config(work.experiment.model), flexgen_policy(work, row)
                yield TimedLM(config, env, directory, policy)
            finally:
                disk.close_copy_threads()
    finally:
        TorchTensor.load_from_np_file = given
        gc.collect()


def generate(lm: TimedLM, work: Work) -> np.ndarray:
    """The tokens of all requests, [requests, output tokens]; KvscopeError if one is missing."""
    ids = lm.generate(work.prompts, max_new_tokens=work.output_tokens)
    tokens: np.ndarray = ids[:, len(work.prompts[0]) :]
    if (tokens == NO_PADDING).any() or len(lm.passes_s) != work.output_tokens:
        raise KvscopeError(f"{work.experiment.id}: FlexGen left out output tokens")
    return tokens


def throughputs(work: Work, passes_s: list[float]) -> dict[str, float]:
    """The metrics of a repeat, by the names and formulas of docs/METRICS.md."""
    requests, outputs = len(work.prompts), work.output_tokens
    prompts, makespan_s = requests * len(work.prompts[0]), sum(passes_s)
    found = {
        "makespan_s": makespan_s,
        "throughput_tokens_per_s": (prompts + requests * outputs) / makespan_s,
        "output_throughput_tokens_per_s": requests * outputs / makespan_s,
        "prefill_throughput_tokens_per_s": prompts / passes_s[0],
    }
    if outputs > 1:
        decoded = requests * (outputs - 1)
        found["decode_throughput_tokens_per_s"] = decoded / sum(passes_s[1:])
    return found


def interval(values: list[float]) -> dict[str, float | None]:
    """The mean over repeats with its 95 % confidence interval."""
    mean, half = fmean(values), half_width(values)
    ends = (None, None) if isnan(half) else (mean - half, mean + half)
    return {"value": mean, "ci_low": ends[0], "ci_high": ends[1]}


def measured(work: Work, row: Row, source: Source) -> dict[str, Any]:
    """A row: warmed up, and repeated until the experiment's stopping rule ends it."""
    experiment = work.experiment
    repeats: list[list[float]] = []
    found: list[dict[str, float]] = []
    with model(work, row, source) as lm:
        for _ in range(experiment.warmup):
            generate(lm, work)
        began = time.perf_counter()
        while not experiment.stopping.ends(
            len(found),
            half_width_share([each["throughput_tokens_per_s"] for each in found]),
            time.perf_counter() - began,
        ):
            gc.collect()
            tokens = generate(lm, work)
            repeats.append(lm.passes_s)
            found.append(throughputs(work, lm.passes_s))
        del lm
    return {
        "label": row.words,
        "metrics": {name: interval([each[name] for each in found]) for name in found[0]},
        "output_sha256": hashlib.sha256(tokens.astype("<i4").tobytes()).hexdigest(),
        "passes_s": repeats,
    }


def code_sha256() -> str:
    """A hash over the modules of the imported FlexGen."""
    files = sorted(metadata.files("flexgen") or (), key=str)
    digest = hashlib.sha256()
    for file in files:
        if file.suffix == ".py":
            digest.update(str(file).encode() + b"\0" + file.read_binary())
    return digest.hexdigest()


def require() -> None:
    """KvscopeError without a GPU, or if FlexGen is not that of the published wheel."""
    if not torch.cuda.is_available():
        raise KvscopeError("torch finds no NVIDIA GPU here, without which FlexGen does not run")
    version, code = metadata.version("flexgen"), code_sha256()
    if (version, code) != (VERSION, CODE_SHA256):
        raise KvscopeError(
            f"flexgen {version} with code {code[:12]}… is not the published wheel {VERSION} "
            f"({CODE_SHA256[:12]}…): let bench/hybrid.sh --flexgen fetch it"
        )


def accelerator() -> dict[str, Any]:
    """The GPU, and what it is driven by."""
    found = torch.cuda.get_device_properties(0)
    return {"name": found.name, "memory_bytes": found.total_memory, "cuda": torch.version.cuda}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="External rows: the published FlexGen.")
    parser.add_argument("experiment", type=Path, help="an experiment.yaml of device offload_cuda")
    parser.add_argument("--out", type=Path, required=True, help="where ID.json is written")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=[*ROWS])
    given = parser.parse_args(arguments)
    try:
        require()
        work = Work.of(load(given.experiment))
        external = rows(work, given.rows)
        write_json(given.out / f"{work.experiment.id}.json", external)
    except KvscopeError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def rows(work: Work, names: list[str]) -> dict[str, Any]:
    """The rows of an experiment, printed as they come, and what they were made with."""
    experiment = work.experiment
    found: dict[str, Any] = {}
    source = seeded(experiment.seed, torch.device(GPU), torch.float16)
    for name in names:
        found[name] = measured(work, ROWS[name], source)
        rate = found[name]["metrics"]["output_throughput_tokens_per_s"]["value"]
        print(f"{experiment.id}: {ROWS[name].words}: {rate:.4g} output tokens/s", flush=True)
    return {
        "external": f"FlexGen {VERSION}, not a part of kvscope",
        "experiment_id": experiment.id,
        "model": experiment.model.model_dump(),
        "weights": work.policy.weights,
        "workload": work.sizes,
        "rows": found,
        "flexgen": {
            "version": VERSION,
            "wheel_sha256": WHEEL_SHA256,
            "code_sha256": CODE_SHA256,
        },
        "gpu": accelerator(),
        "command": " ".join(sys.argv),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "hardware": hardware(),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
