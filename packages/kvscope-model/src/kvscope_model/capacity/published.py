"""Published config.json files as vLLM can plan them without weights, tokenizer and their code."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

MULTIMODAL = ("vision_config", "audio_config", "vit_config", "vision_encoder_config")
WITH_PARTS = "ForConditionalGeneration"  # ends the names of classes that take more than text
OWN_CODE = "auto_map"
WITHOUT_ENCODERS = "vLLM cannot build the parts for images or sound here: weights are without them"
QUANTIZATION = ("quantization_config", "compression_config")


@dataclass(frozen=True)
class Attempt:
    """A config.json and arguments to plan with, and sentences of what was left out for it.

    `encoders`: the plan is for text, but the server has the parts for images and sound.
    """

    config: dict[str, Any]
    arguments: list[str]
    notes: list[str]
    encoders: bool = False


def attempts(config: Mapping[str, Any], arguments: Sequence[str]) -> Iterator[Attempt]:
    """The configuration as vLLM may take it: with its quantization, and without."""
    whole = _without_code(Attempt(dict(config), list(arguments), []))
    whole = _text_alone(whole)
    yield whole
    if names := [name for name in _quantized(config)]:
        yield _without_quantization(whole, names)


def _without_code(attempt: Attempt) -> Attempt:
    """Leave the model's own Python code out: vLLM has code for the architecture, or refuses it."""
    if OWN_CODE not in str(attempt.config):
        return attempt
    config = _without(attempt.config, OWN_CODE)
    note = "the model's own code (auto_map) is not used: vLLM's code of the architecture is"
    return Attempt(config, attempt.arguments, [*attempt.notes, note])


def _text_alone(attempt: Attempt) -> Attempt:
    """Leave out the parts for images and sound, whose processors need files beside config.json."""
    parts = [name for name in MULTIMODAL if attempt.config.get(name)]
    if WITH_PARTS in str(attempt.config.get("architectures")):
        parts = parts or ["its parts for images"]
    if not parts or any("language-model-only" in word for word in attempt.arguments):
        return attempt
    note = (
        f"planned for text (language_model_only=true) without {' and '.join(parts)}: the tokens of "
        "images or sound are not counted"
    )
    arguments = [*attempt.arguments, "--language-model-only"]
    return Attempt(attempt.config, arguments, [*attempt.notes, note], encoders=True)


def _quantized(config: Mapping[str, Any]) -> Iterator[str]:
    """The names of a configuration's quantization, also of the text model's within it."""
    text = config.get("text_config")
    for part in (config, text if isinstance(text, Mapping) else {}):
        for key in QUANTIZATION:
            if isinstance(part.get(key), Mapping):
                yield str(part[key].get("quant_method") or part[key].get("quant_algo") or "unnamed")


def _without_quantization(attempt: Attempt, names: Sequence[str]) -> Attempt:
    """Leave the quantization of weights out: K and V do not depend on it."""
    config = attempt.config
    for key in QUANTIZATION:
        config = _without(config, key)
    note = (
        f"quantization {', '.join(dict.fromkeys(names))} left out, which vLLM cannot set up here: "
        "the KV cache does not depend on it; where the checkpoint's files are not there, weights "
        "count as unquantized"
    )
    return replace(attempt, config=config, notes=[*attempt.notes, note])


def _without(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A configuration without a key, at its top and in the configurations that it holds."""
    return {
        name: _without(value, key) if isinstance(value, Mapping) else value
        for name, value in config.items()
        if name != key
    }
