"""Say where the memory of a model's KV cache goes."""

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvscope.api.commands import EXIT_DONE, argument, arguments, command, flag, path
from kvscope.api.errors import BadInput
from kvscope.api.files import files
from kvscope.api.words import quantities

if TYPE_CHECKING:
    from kvscope_model.report.kv_bytes import Losses

LENGTHS = (1024, 2048, 8192, 32768)
LINKS = (13.0, 26.0, 52.0, 200.0)
# As vLLM needs them to start in one process without a network; what else is set stays.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
}


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
        "--memory",
        type=arguments.size(),
        default=40 * 2**30,
        metavar="SIZE",
        help=f"of the KV cache, {quantities.SIZE_HELP}, or bytes (default: 40GiB)",
    ),
    argument(
        "--tokens",
        type=arguments.whole(1),
        nargs="+",
        default=list(LENGTHS),
        metavar="N",
        help=f"lengths of requests (default: {' '.join(map(str, LENGTHS))})",
    ),
    argument("--hardware", default="a100-80gb", help="that recomputes (default: a100-80gb)"),
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
    """Say where the memory of a model's KV cache goes, as vLLM plans it.

    Needs no weights and no GPU. Of each KV group: layers, tokens and bytes of a block, useful,
    padded and reserved. Of requests: what each holds, how many fit, and what a preemption costs:
    bytes to swap, FLOPs to compute it again, and which is quicker over which link. The plan is that
    of the platform that vLLM runs on, which the first line names.
    """
    if given.picture and given.picture.suffix != ".svg":
        raise BadInput(f"--picture is {str(given.picture)!r} but must end with .svg")
    losses = _losses(given)
    print(json.dumps(losses.as_json(), indent=2) if given.json else "\n".join(losses.lines()))
    if given.picture:
        files.write_text(given.picture, losses.picture())
    return EXIT_DONE


def _losses(given: argparse.Namespace) -> "Losses":
    from kvscope.api.running import require_vllm
    from kvscope_model.hardware import hardware
    from kvscope_model.report.kv_bytes import Losses, lengths

    hardware_model = hardware.read(given.hardware)
    arguments = [*map(_argument, given.vllm)]
    require_vllm(computes=False)
    os.environ.update(ENVIRONMENT)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")
    with _model_directory(given) as (name, own, directory):
        print(f"{name}: vLLM plans its KV cache", file=sys.stderr)
        from kvscope.api.vllm import kv_planning

        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        wanted = lengths(given.tokens, _longest(config))
        planned = kv_planning.plan(directory, name, given.memory, wanted, [*own, *arguments])
    return Losses(planned, given.tokens, given.hardware, hardware_model, given.links)


def _argument(word: str) -> str:
    """'max_model_len=8192' as `vllm serve` has it; true and false switch."""
    match = re.fullmatch(r"([a-z][a-z0-9_]*)=(.+)", word)
    if not match:
        raise BadInput(f"{word!r:.200} is no argument of `vllm serve` as in max_model_len=8192")
    name, value = match[1].replace("_", "-"), match[2]
    return {"true": f"--{name}", "false": f"--no-{name}"}.get(value, f"--{name}={value}")


def _longest(config: dict[str, Any]) -> int:
    """The longest request that a model's configuration allows."""
    text = config.get("text_config", config)
    most = text.get("max_position_embeddings", 2**15) if isinstance(text, dict) else 0
    return most if isinstance(most, int) else 2**15


@contextmanager
def _model_directory(given: argparse.Namespace) -> Iterator[tuple[str, list[str], Path]]:
    """The model's name and arguments, and a directory with the model's config.json alone."""
    name, own, text = _model(given)
    with tempfile.TemporaryDirectory(prefix="kvscope-bytes-") as created:
        Path(created, "config.json").write_text(text, encoding="utf-8")
        yield name, own, Path(created)


def _model(given: argparse.Namespace) -> tuple[str, list[str], str]:
    """A name, arguments and a config.json; BadInput if the word is neither a model nor such a file.

    A model of config/model has the number type that runs of it have: vLLM's own choice differs.
    """
    from pydantic import ValidationError

    from kvscope.api.composition import composition
    from kvscope.api.models import Model
    from kvscope.api.settings import complaints

    config_file = Path(given.model)
    if config_file.is_dir():
        config_file = config_file / "config.json"
    if config_file.is_file():
        name = (
            config_file.parent.resolve().name
            if config_file.name == "config.json"
            else config_file.stem
        )
        return name, [], _read(config_file)
    names = composition.groups(given.config_dir)["model"]
    if given.model not in names:
        raise BadInput(
            f"{given.model!r:.200} is no directory with a config.json, no such file, and no model "
            f"of {given.config_dir}/model: {', '.join(names)}"
        )
    chosen = composition.Composer(given.config_dir).compose((("model", given.model),))["model"]
    file = f"{given.config_dir}/model/{given.model}.yaml"
    try:
        model = Model.model_validate(chosen)
    except ValidationError as error:
        raise complaints.validation_message(Model, error, lambda _: file, chosen) from None
    return given.model, [f"--dtype={model.dtype}"], json.dumps(model.hf_config())


def _read(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8")
        config = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{file}: it cannot be read as JSON: {error}") from None
    if not isinstance(config, dict) or not config.get("model_type"):
        raise BadInput(f"{file}: no config.json of a model: it has no model_type")
    return text
