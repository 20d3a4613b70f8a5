"""The config.json of a model: of config/model, a file, a directory, or Hugging Face's cache."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kvscope.api.composition import composition
from kvscope.api.errors import BadInput, reason_of
from kvscope.api.files import reading
from kvscope.api.models import Model
from kvscope.api.settings import complaints
from kvscope_model.capacity.checkpoint import Checkpoint, beside

LONGEST = 2**15  # tokens of a request, where a configuration does not say it

MOST_BYTES = 2**24  # of a config.json
MOST_LAYERS = 10_000  # that can be made
OTHER_FILES = {
    ".gguf": "it has weights; give the config.json of the model that they were made of",
    ".safetensors": "it has weights; give the config.json beside it",
    "adapter_config.json": "it is of an adapter; give the config.json of its base model",
    "params.json": "it has Mistral's format; give the model's config.json",
}
"""Files of models that are not configurations, by the ends of their names."""

Found = tuple[str, list[str], dict[str, Any]]
"""A model's name, arguments of `vllm serve` that it has, and its config.json."""


def find(word: str, config_dir: Path) -> Found:
    """The model that a word names; BadInput if there is none, or if its file is no config.json.

    A model of config/model has the number type that runs of it have: vLLM's own choice differs.
    """
    if file := _file(word):
        name = file.parent.resolve().name if file.name == "config.json" else file.stem
        return (word if _is_id(word) and not Path(word).exists() else name), [], _read(file)
    if os.path.isdir(word):
        inside = (sentence for name, sentence in OTHER_FILES.items() if Path(word, name).is_file())
        raise BadInput(f"{word}: {next(inside, 'a directory without a config.json')}")
    names = composition.groups(config_dir)["model"]
    if word in names:
        return _of_kvscope(word, config_dir)
    raise BadInput(
        f"{word!r:.200} is no directory with a config.json, no such file, no model of "
        f"{config_dir}/model{complaints.suggestion(word, names)} ({', '.join(names)}), and no "
        f"model whose config.json is in {_hub()}"
    )


def checkpoint(word: str, config: Mapping[str, Any]) -> Checkpoint | None:
    """The weights beside the config.json that a word names; None if there are none."""
    file = _file(word)
    return beside(file.parent, config) if file and file.name == "config.json" else None


def kv_heads(config: Mapping[str, Any]) -> int | None:
    """KV heads of a configuration, if it says them."""
    heads = _text(config).get("num_key_value_heads")
    return heads if isinstance(heads, int) else None


def longest(config: Mapping[str, Any]) -> int:
    """The longest request that a configuration allows."""
    most = _text(config).get("max_position_embeddings", LONGEST)
    return most if isinstance(most, int) else LONGEST


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    text = config.get("text_config")
    return text if isinstance(text, dict) else config


def _file(word: str) -> Path | None:
    """The config.json that a word names as a path or as an id of Hugging Face, if it does."""
    places = [Path(word), Path(word) / "config.json"]
    if _is_id(word):
        model = _hub() / f"models--{word.replace('/', '--')}"
        places += sorted(model.glob("snapshots/*/config.json"), reverse=True)
    for place in places:
        try:
            if place.is_file():
                return place
        except (OSError, ValueError) as error:
            why = reason_of(error) if isinstance(error, OSError) else error
            raise BadInput(f"{word!r:.200}: it cannot be read: {why}") from None
    return None


def _is_id(word: str) -> bool:
    return word.count("/") == 1 and not word.startswith((".", "/", "~")) and "\0" not in word


def _hub() -> Path:
    """The cache of Hugging Face's hub."""
    home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")


def _of_kvscope(name: str, config_dir: Path) -> Found:
    chosen = composition.Composer(config_dir).compose((("model", name),))["model"]
    file = f"{config_dir}/model/{name}.yaml"
    try:
        model = Model.model_validate(chosen)
    except ValidationError as error:
        raise complaints.validation_message(Model, error, lambda _: file, chosen) from None
    return name, [f"--dtype={model.dtype}"], model.hf_config()


def _read(file: Path) -> dict[str, Any]:
    """A config.json; BadInput if it is no configuration of a model."""
    content = reading.read_bytes(file, MOST_BYTES)
    for suffix, sentence in OTHER_FILES.items():
        if file.name.endswith(suffix):
            raise BadInput(f"{file}: {sentence}")
    try:
        config: Any = json.loads(content)  # in UTF-8, 16 or 32
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{file}: it cannot be read as JSON: {error}") from None
    if not isinstance(config, dict):
        raise BadInput(f"{file}: no config.json of a model: it has no object, but {_kind(config)}")
    if not isinstance(config.get("model_type"), str) or not config["model_type"]:
        raise BadInput(f"{file}: no config.json of a model: it has no model_type")
    layers = _text(config).get("num_hidden_layers")
    if isinstance(layers, int) and layers > MOST_LAYERS:
        raise BadInput(f"{file}: num_hidden_layers is {layers:,}, more than {MOST_LAYERS:,}")
    return config


def _kind(value: Any) -> str:
    kinds = {list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    return kinds.get(type(value), "a number")
