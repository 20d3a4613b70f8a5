"""Arguments of `vllm serve` as a plan takes them."""

import argparse
import contextlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from pydantic import ValidationError
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

from kvscope.base.errors import BadInput
from kvscope.base.reading import last_line
from kvscope.engine.vllm.reasons import reason
from kvscope.plan.wording import suggestion

ELSEWHERE = {
    "kv_cache_memory_bytes": "kv_cache_memory_bytes is --memory here, as in --memory 4GiB",
    "model": "model is the first argument here, as in `kvscope bytes MODEL`",
    "config": "config is not read here; give the arguments that the file has as KEY=VALUE",
}
"""Arguments that a plan takes in another way."""


def engine_args(words: Sequence[str], directory: Path) -> EngineArgs:
    """vLLM's arguments for the model in `directory`; BadInput if it does not have such ones.

    Those of its HTTP server change no plan. Weights and a tokenizer are not needed.
    """
    parser = FlexibleArgumentParser(
        prog="vllm serve", add_help=False, exit_on_error=False, allow_abbrev=False
    )
    EngineArgs.add_cli_args(parser)
    for name, sentence in ELSEWHERE.items():
        if any(word.partition("=")[0] == f"--{name.replace('_', '-')}" for word in words):
            raise BadInput(sentence)
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
            parsed, others = parser.parse_known_args(list(words))
    except (SystemExit, argparse.ArgumentError) as error:
        why = last_line(output.getvalue()).removeprefix("vllm serve: error: ") or _why(error)
        raise BadInput(f"vLLM refuses its arguments: {why}") from error
    for name in _unknown(others):
        known = [option.lstrip("-").replace("-", "_") for option in parser._option_string_actions]
        raise BadInput(
            f"{name!r:.80} is no argument of `vllm serve`{suggestion(name, known)}; "
            "`vllm serve --help=all` lists them"
        )
    parsed.model, parsed.tokenizer = str(directory), None
    parsed.load_format, parsed.skip_tokenizer_init = "dummy", True
    return EngineArgs.from_cli_args(parsed)


def _why(error: BaseException) -> str:
    """Why a value is refused: of an object that pydantic reads, its first complaint."""
    cause: BaseException | None = error
    while cause and not isinstance(cause, ValidationError):
        cause = cause.__cause__ or cause.__context__
    if not (cause and isinstance(error, argparse.ArgumentError)):
        return str(error)
    return f"argument {error.argument_name}: {reason(cause)}"


def _unknown(words: Sequence[str]) -> Iterator[str]:
    """Names of arguments that vLLM's HTTP server does not have either."""
    if not words:
        return
    from vllm.entrypoints.launchers.cli_args import FrontendArgs

    known = {field.name for field in fields(FrontendArgs)} | {"headless", "api_server_count"}
    for word in words:
        name = word.partition("=")[0].lstrip("-").replace("-", "_")
        if name.removeprefix("no_") not in known:
            yield name
