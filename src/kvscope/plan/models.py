"""Architectures as data: sizes, parameter counts, cache bytes and the config.json; no weights."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticKnownError

from kvscope.base import plugins
from kvscope.plan.fields import (
    MAX_NUMBER,
    Count,
    Label,
    Name,
    Part,
    Real,
    Tokens,
    Whole,
    impossible,
)
from kvscope.plan.parts import Conditions
from kvscope.tables import kv_kinds
from kvscope.tables.kv_group import KvGroup
from kvscope.tables.kv_kinds import KvKind

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1}

# OPT's table of learned positions has two rows more than there are positions (padding).
OPT_POSITION_OFFSET = 2

# The ids of padding and of the beginning and end of a text, in Llama's and OPT's vocabularies.
# Prompts use none of them (see workload.requests).
SPECIAL_IDS = {
    "llama": {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "opt": {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 2},
}


class YarnScaling(Part):
    """YaRN (arXiv 2309.00071): rotary positions stretched by `factor`."""

    rope_type: Literal["yarn"]
    factor: Annotated[Real, Field(ge=1)]
    original_max_position_embeddings: Count


class Llama3Scaling(Part):
    """Llama 3.1's scaling: low frequencies stretched by `factor`, high frequencies kept."""

    rope_type: Literal["llama3"]
    factor: Annotated[Real, Field(ge=1)]
    low_freq_factor: Annotated[Real, Field(gt=0)]
    high_freq_factor: Annotated[Real, Field(gt=0)]
    original_max_position_embeddings: Count


def _known_kind(name: str) -> str:
    kinds = plugins.names(kv_kinds.GROUP)
    if name not in kinds:
        raise PydanticKnownError("literal_error", {"expected": f"one of {', '.join(kinds)}"})
    return name


KindName = Annotated[
    str, AfterValidator(_known_kind), WithJsonSchema({"enum": [*plugins.names(kv_kinds.GROUP)]})
]
"""The name of a kind of KV group in `model.kv_layers`."""


class KvLayers(Part):
    """Layers of one kind of attention, and what each keeps in the KV cache.

    Of each token `token_elements` numbers, K and V or a latent, in the cache's number type; of each
    request `state_bytes`. `window_tokens` is the window or the chunk that attention is limited to.
    Further `shared_layers` attend to what these keep, and keep nothing.
    """

    kind: KindName
    layers: Count
    token_elements: Annotated[Whole, Field(ge=0, le=MAX_NUMBER)] = 0
    state_bytes: Annotated[Whole, Field(ge=0, le=MAX_NUMBER)] = 0
    window_tokens: Tokens | None = None
    shared_layers: Annotated[Whole, Field(ge=0, le=MAX_NUMBER)] = 0

    @property
    def of(self) -> KvKind:
        """The kind, which says how many blocks a request holds."""
        return kv_kinds.registered()[self.kind]

    @property
    def attending_layers(self) -> int:
        """Layers that attend to what is kept: those that keep it, and those that share it."""
        return self.layers + self.shared_layers

    @model_validator(mode="after")
    def _keeps_one(self) -> "KvLayers":
        states, limited = self.of.keeps_state, bool(self.of.window)
        if states != (self.state_bytes > 0) or states == (self.token_elements > 0):
            keys = "state_bytes alone" if states else "token_elements alone"
            raise impossible(f"model.kv_layers of kind {self.kind} must set {keys}")
        if limited != (self.window_tokens is not None):
            must = "must set" if limited else "must not set"
            raise impossible(f"model.kv_layers of kind {self.kind} {must} window_tokens")
        return self


OF_HF = ("config", "kv_layers", "block_layers", "weights", "weights_per_token")
"""The keys that a model by its config.json has, and no other."""

Weights = Annotated[Whole, Field(ge=1, le=10**13)]

RopeScaling = Annotated[YarnScaling | Llama3Scaling, Field(discriminator="rope_type")]


class Model(Part):
    """A decoder-only model, by its sizes.

    `family` fixes the shape of a transformer block: 'llama' (RMSNorm, rotary positions, gated
    MLP, no biases) or 'opt' (LayerNorm, learned positions, plain MLP, biases). 'hf' is any other
    architecture that vLLM knows, by its own config.json (`config`). What follows from it stands
    beside it: what its layers keep (`kv_layers`), how many of one kind vLLM puts into a KV group,
    whose blocks hold their contents (`block_layers`), and its weights, of which each token takes
    `weights_per_token`, without embedding and output layer.
    """

    name: Name
    family: Literal["llama", "opt", "hf"]
    dtype: Annotated[Literal["float32", "float16", "bfloat16"], Label("number type")]
    hidden_size: Count
    layers: Count
    attention_heads: Count
    kv_heads: Count
    head_size: Count
    intermediate_size: Count
    vocab_size: Annotated[Whole, Field(ge=8, le=MAX_NUMBER)]
    max_position_embeddings: Tokens
    tie_word_embeddings: bool
    rope_theta: Annotated[Real, Field(gt=0)] | None = None
    rope_scaling: RopeScaling | None = None
    config: dict[str, Any] | None = None
    kv_layers: list[KvLayers] | None = None
    block_layers: Count | None = None
    weights: Weights | None = None
    weights_per_token: Weights | None = None

    @classmethod
    def of(cls, experiment: Conditions) -> "Model":
        """The model of an experiment with all sizes; `Conditions` names only some of them."""
        assert isinstance(experiment.model, cls)
        return experiment.model

    @model_validator(mode="after")
    def _described_by_one(self) -> "Model":
        values = {key: getattr(self, key) for key in OF_HF}
        for key, value in values.items():
            if (value is None) == (self.family == "hf"):
                must = "must be set" if value is None else "must be null"
                sentence = f"model.{key} {must} with model.family={self.family}"
                raise impossible(sentence, f"model.{key}")
        return self

    @model_validator(mode="after")
    def _consistent(self) -> "Model":
        heads = self.attention_heads
        if heads % self.kv_heads:
            raise impossible(
                f"model.attention_heads ({heads}) must be a multiple of "
                f"model.kv_heads ({self.kv_heads})",
                "model.kv_heads",
            )
        if self.family != "hf" and heads * self.head_size != self.hidden_size:
            raise impossible(
                f"model.attention_heads times model.head_size ({heads} x {self.head_size}) must "
                f"be model.hidden_size ({self.hidden_size})",
                "model.head_size",
            )
        if self.family == "opt" and self.kv_heads != heads:
            raise impossible(
                f"model.kv_heads ({self.kv_heads}) must be model.attention_heads ({heads}), since "
                "OPT shares no keys and values between heads",
                "model.kv_heads",
            )
        if self.family == "opt" and (self.rope_theta or self.rope_scaling):
            raise impossible(
                "model.rope_theta and model.rope_scaling must be null, since OPT learns its "
                "positions",
                "model.rope_theta",
            )
        if self.family == "llama" and self.rope_theta is None:
            raise impossible("model.rope_theta must be set for a Llama model", "model.rope_theta")
        return self

    @property
    def parameters(self) -> int:
        """Number of weights, exact; an output layer tied to the embedding is counted once."""
        if self.weights is not None:
            return self.weights
        norm = self.hidden_size * (1 if self.family == "llama" else 2)
        embedding = self.vocab_size * self.hidden_size
        output = 0 if self.tie_word_embeddings else embedding
        return embedding + self._positions + self.layers * self._block + norm + output

    @property
    def _positions(self) -> int:
        if self.family == "llama":
            return 0
        return (self.max_position_embeddings + OPT_POSITION_OFFSET) * self.hidden_size

    @property
    def _block(self) -> int:
        """Weights of one transformer block."""
        hidden, inner = self.hidden_size, self.intermediate_size
        projections = 2 * hidden * hidden + 2 * hidden * self.kv_heads * self.head_size
        if self.family == "llama":
            return projections + 3 * hidden * inner + 2 * hidden
        biases = 4 * hidden + inner + hidden
        return projections + 2 * hidden * inner + biases + 2 * 2 * hidden

    @property
    def number_bytes(self) -> int:
        """Bytes of a number in the model's dtype."""
        return BYTES[self.dtype]

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights in the model's dtype."""
        return self.parameters * self.number_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that the newest token has in the cache, over all layers, in the model's dtype.

        With K and V of all heads in each layer: 2 x layers x kv_heads x head_size.
        """
        return self.token_elements * self.number_bytes

    @property
    def kept(self) -> list[KvLayers]:
        """Layers that keep contents, by kind of attention."""
        if self.kv_layers is not None:
            return self.kv_layers
        elements = 2 * self.kv_heads * self.head_size
        return [KvLayers(kind="full", layers=self.layers, token_elements=elements)]

    @property
    def keeps_latent(self) -> bool:
        """Whether layers keep a latent in place of K and V."""
        return any(layers.kind == "mla" for layers in self.kept)

    @property
    def token_elements(self) -> int:
        """Numbers that are kept of each token, over all layers."""
        return sum(layers.layers * layers.token_elements for layers in self.kept)

    @property
    def attending(self) -> list[KvLayers]:
        """Its layers with attention, by kind."""
        return [layers for layers in self.kept if layers.token_elements]

    def prefill_elements(self, kind: KvLayers) -> int:
        """Elements of a key and a value of one head, as prefill multiplies them."""
        if kind.kind != "mla":
            return 2 * self.head_size
        parts = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        return sum(int((self.config or {})[part]) for part in parts)

    def absorbed_elements(self, kind: KvLayers) -> int:
        """Elements that a head multiplies in decode of a latent: as key with rotary part, as value.

        What is kept of a token is the latent and the rotary part.
        """
        return kind.token_elements + int((self.config or {})["kv_lora_rank"])

    @property
    def layer_weights(self) -> int:
        """Parameters without embedding and output layer."""
        ends = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return self.parameters - ends

    @property
    def weights_of_a_token(self) -> int:
        """Weights that each token is multiplied with; of experts, only those that it takes."""
        return self.weights_per_token or self.layer_weights

    @property
    def layers_apart(self) -> int:
        """Layers whose blocks have memory of their own: layers of other KV groups share it."""
        return self.block_layers or self.layers

    @property
    def block_elements(self) -> int:
        """Numbers that a block of the pool has room for, of each of its tokens."""
        return self.layers_apart * max(layers.token_elements for layers in self.kept)

    @property
    def keeps_all(self) -> bool:
        """Whether every layer keeps every token, so that requests hold blocks by their length."""
        return all(layers.of.keeps_all for layers in self.kept)

    def groups(self, kind: KvLayers) -> int:
        """KV groups that vLLM makes of the layers of one kind."""
        return -(-kind.layers // self.layers_apart)

    def kv_groups(self, block_tokens: int, width: int) -> tuple[KvGroup, ...]:
        """The KV groups of its layers, in blocks of so many tokens and numbers of `width` bytes."""
        place = block_tokens * width * max(part.token_elements for part in self.kept)
        groups = []
        for kind in self.kept:
            useful_bytes = kind.state_bytes or block_tokens * width * kind.token_elements
            count = self.groups(kind)
            for layers in (len(range(first, kind.layers, count)) for first in range(count)):
                groups.append(
                    KvGroup(
                        kind=kind.of.vllm_name,
                        layers=layers,
                        block_tokens=block_tokens,
                        useful_bytes=layers * useful_bytes,
                        padded_bytes=layers * place,
                        block_bytes=self.layers_apart * place,
                        window_tokens=kind.window_tokens,
                    )
                )
        return tuple(groups)

    @property
    def activation_bytes_per_token(self) -> int:
        """Bytes of the inputs of attention of one token over all layers: layers x hidden_size.

        K and V are a product of them. With a KV head for each query head they have half its bytes.
        """
        return self.layers * self.hidden_size * self.number_bytes

    def hf_config(self) -> dict[str, Any]:
        """The config.json from which transformers and vLLM build this architecture."""
        if self.config is not None:
            return self.config
        common = {
            "dtype": self.dtype,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.attention_heads,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": self.max_position_embeddings,
            "tie_word_embeddings": self.tie_word_embeddings,
            **SPECIAL_IDS[self.family],
        }
        return common | (self._llama_config() if self.family == "llama" else self._opt_config())

    def _llama_config(self) -> dict[str, Any]:
        scaling = self.rope_scaling.model_dump() if self.rope_scaling else {"rope_type": "default"}
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_size,
            "intermediate_size": self.intermediate_size,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "rope_parameters": scaling | {"rope_theta": self.rope_theta},
        }

    def _opt_config(self) -> dict[str, Any]:
        return {
            "architectures": ["OPTForCausalLM"],
            "model_type": "opt",
            "ffn_dim": self.intermediate_size,
            "word_embed_proj_dim": self.hidden_size,
            "activation_function": "relu",
            "do_layer_norm_before": True,
        }
