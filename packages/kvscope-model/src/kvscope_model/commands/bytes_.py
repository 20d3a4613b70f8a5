"""Say where the memory of a model's KV cache goes."""

import argparse
import json
import math
import re
import sys
from typing import TYPE_CHECKING

from kvscope.api.commands import EXIT_DONE, argument, arguments, command, flag, path
from kvscope.api.errors import BadInput
from kvscope.api.files import files
from kvscope.api.words import quantities

if TYPE_CHECKING:
    from kvscope_model.report.capacity import Capacity, Mix
    from kvscope_model.report.kv_bytes import Losses

LENGTHS = (1024, 2048, 8192, 32768)
LINKS = (13.0, 26.0, 52.0, 200.0)
OTHER_HARDWARE = "a100-80gb"
CPU_MEMORY = 40 * 2**30
SHORT = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "dcp": "decode_context_parallel_size",
}
"""Short names of arguments of `vllm serve`."""

PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


def _mix(text: str) -> "Mix":
    from kvscope_model.report.capacity import Mix

    prompt, _, output = text.partition(":")
    if not (prompt.isdigit() and output.isdigit() and int(prompt) and int(output)):
        raise argparse.ArgumentTypeError(f"{text!r} is not PROMPT:OUTPUT in tokens, as 8192:512")
    return Mix(int(prompt), int(output))


@command(
    (
        "llama-3.1-8b",
        "models/gemma-3-1b/config.json --memory 4GiB --tokens 512 4096 --json",
        "models/falcon-h1 max_model_len=8192 kv_cache_dtype=fp8 --picture bytes.svg",
    ),
    argument(
        "model",
        metavar="MODEL",
        help="a model of config/model, or a Hugging Face config.json or its directory",
    ),
    argument(
        "vllm",
        nargs="*",
        metavar="KEY=VALUE",
        help="arguments of `vllm serve` that change what it plans, as block_size=32",
    ),
    argument(
        "--gpu",
        default="h100",
        metavar="NAME",
        help="that the plan is for (default: h100), or cpu: this machine's",
    ),
    argument(
        "--gpus",
        type=arguments.whole(1),
        metavar="N",
        help="how many; tensor_parallel_size, unless KEY=VALUE divide them otherwise (default: 1)",
    ),
    argument(
        "--memory",
        type=arguments.size(),
        metavar="SIZE",
        help=f"of the KV cache of a GPU, where it is known, {quantities.SIZE_HELP}, or bytes "
        "(default: what the GPU leaves; 40GiB with --gpu cpu)",
    ),
    argument(
        "--tokens",
        type=arguments.whole(1),
        nargs="+",
        default=list(LENGTHS),
        metavar="N",
        help=f"lengths of requests (default: {' '.join(map(str, LENGTHS))})",
    ),
    argument(
        "--mix",
        type=_mix,
        nargs="+",
        default=[],
        metavar="PROMPT:OUTPUT",
        help="lengths of prompts and outputs, as 8192:512",
    ),
    argument("--hardware", help="that recomputes (default: the GPU's, or a100-80gb)"),
    argument(
        "--links",
        type=arguments.positive("GB/s", below=1e6),
        nargs="+",
        default=list(LINKS),
        metavar="GB/S",
        help="to the host, each way, as copies reach them (default: 13 26 52 200, as of PCIe 3, "
        "4 and 5, and NVLink-C2C)",
    ),
    flag("--json", "print JSON"),
    path("--picture", "write a picture, as FILE.svg", metavar="FILE"),
    arguments.CONFIG_DIR,
    order=180,
)
def bytes_(given: argparse.Namespace) -> int:
    """Say what a server has room for on a GPU, as vLLM plans it.

    Needs no weights and no GPU. Whether it starts, requests at once, where the memory goes, the
    first flag to change; of each KV group: layers, tokens and bytes of a block; and what a
    preemption costs: bytes to swap, FLOPs to compute tokens again, and which is quicker over which
    link.
    """
    if given.picture and given.picture.suffix != ".svg":
        raise BadInput(f"--picture is {str(given.picture)!r} but must end with .svg")
    capacity, losses = _planned(given)
    if given.json:
        print(json.dumps(losses.as_json() | {"capacity": capacity.as_json()}, indent=2))
    else:
        print("\n".join([*capacity.lines(), "", *losses.lines()]))
    if given.picture:
        from kvscope_model.report.picture import picture

        files.write_text(given.picture, picture(losses))
    return EXIT_DONE


def _planned(given: argparse.Namespace) -> "tuple[Capacity, Losses]":
    from kvscope.api.running import require_vllm
    from kvscope_model.capacity import gpus, models
    from kvscope_model.capacity.request import Question, ask
    from kvscope_model.hardware import hardware
    from kvscope_model.report.capacity import Capacity
    from kvscope_model.report.kv_bytes import Losses, lengths

    gpu = None if given.gpu == gpus.CPU else gpus.gpu_of(given.gpu)
    hardware_name = given.hardware or (gpu and gpu.hardware) or OTHER_HARDWARE
    hardware_model = hardware.read(hardware_name)
    settings = dict(map(_setting, given.vllm))
    require_vllm(computes=False)
    name, added, config = models.find(given.model, given.config_dir)
    count = _gpus(given.gpus, settings)
    asked = sorted({*given.tokens, *(tokens for mix in given.mix for tokens in mix.lengths)})
    question = Question(
        name=name,
        config=config,
        arguments=[*added, *(_argument(*item) for item in settings.items())],
        lengths=lengths(asked, models.longest(config)),
        advise=True,
        memory_bytes=given.memory or (CPU_MEMORY if gpu is None else None),
        gpu=gpu,
        gpus=count,
        kv_heads=models.kv_heads(config),
        checkpoint=models.checkpoint(given.model, config),
    )
    print(f"{name}: vLLM plans its KV cache", file=sys.stderr)
    answer = ask(question)
    capacity = Capacity(
        answer, gpu, count, given.tokens, given.mix, settings, models.kv_heads(config)
    )
    return capacity, Losses(answer.plan, given.tokens, hardware_name, hardware_model, given.links)


def _setting(word: str) -> tuple[str, str]:
    """A word as 'max_model_len=8192'."""
    match = re.fullmatch(r"([a-z][a-z0-9_]*)=(.+)", word)
    if not match:
        raise BadInput(f"{word!r:.200} is no argument of `vllm serve` as in max_model_len=8192")
    return SHORT.get(match[1], match[1]), match[2]


def _argument(name: str, value: str) -> str:
    """A setting as `vllm serve` has it; true and false switch."""
    name = name.replace("_", "-")
    return {"true": f"--{name}", "false": f"--no-{name}"}.get(value.lower(), f"--{name}={value}")


def _gpus(asked: int | None, settings: dict[str, str]) -> int:
    """GPUs of the server; those that the settings do not divide are tensor parallel ranks.

    BadInput if the settings divide another number of GPUs than was asked for.
    """
    ranks = math.prod(int(settings[name]) for name in PARALLEL if settings.get(name, "").isdigit())
    if asked is None or not ranks:
        return max(1, ranks)
    if asked % ranks or (asked > ranks and PARALLEL[0] in settings):
        words = " ".join(f"{name}={settings[name]}" for name in PARALLEL if name in settings)
        raise BadInput(f"--gpus is {asked} but {words} divide {ranks} GPUs")
    if asked > ranks:
        settings[PARALLEL[0]] = str(asked // ranks)
    return asked
