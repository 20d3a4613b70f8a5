"""Configurations whose `model_type` only a model's own Python code knows.

vLLM's code of an architecture reads values of such a configuration, which Transformers refuses.
"""

from collections.abc import Mapping
from typing import Any

from transformers import AutoConfig, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from vllm.config import ModelConfig
from vllm.transformers_utils.config import _CONFIG_REGISTRY

PARTS = ("text_config", "llm_config", "language_config", "vision_config", "audio_config")


class Published(PreTrainedConfig):
    """A configuration with the values of config.json alone, in its parts, too.

    It may lack values that were defaults of Transformers 4, and those of norms and activations.
    """

    rms_norm_eps = 1e-6
    hidden_act = "silu"
    attention_bias = mlp_bias = False
    tie_word_embeddings = True
    rope_scaling = pad_token_id = None

    def __post_init__(self, **values: Any) -> None:
        parts = {name: _part(name, value) for name, value in values.items()}
        for name, part in parts.items():  # Transformers reads some before it sets any
            if not isinstance(getattr(type(self), name, None), property):
                setattr(self, name, part)
        super().__post_init__(**parts)


class Entry(dict[str, Any]):
    """An object of a list in config.json, whose values are attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"'EntryConfig' object has no attribute {name!r}") from None


def register(config: Mapping[str, Any]) -> None:
    """Have Transformers read a configuration of a type that it lacks."""
    model_type = config.get("model_type")
    if isinstance(model_type, str) and not _is_known(model_type):
        AutoConfig.register(model_type, type("Config", (Published,), {"model_type": model_type}))


def _is_known(model_type: str) -> bool:
    return model_type in CONFIG_MAPPING_NAMES or model_type in _CONFIG_REGISTRY


def _part(name: str, value: Any) -> Any:
    if name in PARTS and isinstance(value, dict):
        model_type = value.get("model_type")
        if isinstance(model_type, str) and model_type in CONFIG_MAPPING_NAMES:
            return AutoConfig.for_model(**value)
        return Published(**value)
    return _entry(value) if isinstance(value, list) else value


def _entry(value: Any) -> Any:
    if isinstance(value, list):
        return [_entry(item) for item in value]
    if isinstance(value, dict):
        return Entry({name: _entry(item) for name, item in value.items()})
    return value


def ask_no_processor() -> None:
    """Have vLLM take a model for text alone where `language_model_only` leaves all other parts out.

    It asks the model's processor for the names of these parts, which needs a tokenizer.
    """
    asks = ModelConfig._supports_multimodal_inputs

    def supports(self: ModelConfig) -> bool:
        parts = self.multimodal_config
        if parts and parts.language_model_only and not parts.enable_mm_embeds:
            return False
        return bool(asks(self))

    ModelConfig._supports_multimodal_inputs = supports  # type: ignore[method-assign]
