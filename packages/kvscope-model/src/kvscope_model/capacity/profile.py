"""What vLLM's profile run takes beside the weights, from the shapes of its tensors.

The run computes one pass with `max_num_batched_tokens` tokens and samples a token for each of
`max_num_seqs` requests (`vllm/v1/worker/gpu/model_runner.py`, `profile_run`). Its peak is that of a
layer, of an encoder of images or of the sampler, whichever is the largest, beside what stays
allocated: workspaces of experts, and the outputs of the encoder.
"""

import contextlib
from dataclasses import dataclass, replace
from typing import Any

IMAGE_TOKENS = 16_384  # of the largest image or video that most processors allow
MERGED = 4  # patches of an image that make a token, in Qwen's and Gemma's encoders
FOUR_BITS = "fp4"  # in the names of vLLM's quantizations: mxfp4, modelopt_fp4
ALLOCATOR_BYTES = 50 * 2**20  # small tensors, and blocks that PyTorch rounds up


@dataclass(frozen=True)
class Release:
    """How a release of vLLM samples, and what stays allocated while it does.

    `logit_bytes` are those of a request and a vocabulary entry at the sampler's peak, and
    `least_logit_bytes` those where FlashInfer samples, if that differs; `kept_logit_bytes` are
    those that the sampler keeps from its start on.
    """

    logit_bytes: float
    kept_logit_bytes: float
    least_logit_bytes: float | None = None
    keeps_workspaces: bool = True
    counts_graphs: bool = True


# Logits in the model's number type and in float32 (`gpu/sample/sampler.py`); of the tokens that a
# request has had, a count of 4 bytes and a bit of the prompt (`gpu/sample/penalties.py`).
CURRENT = Release(logit_bytes=2 + 4, kept_logit_bytes=4 + 1 / 8)


@dataclass(frozen=True)
class Shape:
    """The sizes on which the profile run of a rank depends.

    `inner` is the width of a dense feed-forward part, or of the shared experts; `expert_inner` that
    of an expert on this rank, of which each token takes `experts`: 0 if they have four bits, whose
    kernels need no workspaces. `encoder` and `encoder_inner` are the widths of an encoder of
    images, 0 if there is none. `graphs` counts the batch sizes that have CUDA graphs.
    """

    tokens: int
    requests: int
    hidden: int
    inner: int
    experts: int
    expert_inner: int
    encoder: int
    encoder_inner: int
    vocabulary: int
    number_bytes: int
    layers: int
    tensor_ranks: int
    stages: int
    graphs: int
    samples: bool

    @staticmethod
    def of(config: Any, images: bool) -> "Shape":
        """The shape of vLLM's configuration, of a model that does or does not take images."""
        model, parallel = config.model_config, config.parallel_config
        text, ranks = model.hf_text_config, parallel.tensor_parallel_size
        hidden = int(model.get_hidden_size())
        dense = _size(text, "intermediate_size", "ffn_hidden_size") or 4 * hidden
        taken = _size(text, "num_experts_per_tok", "top_k_experts", "moe_topk")
        packed = FOUR_BITS in str(model.quantization)
        expert = _size(text, "moe_intermediate_size", "expert_intermediate_size") or dense
        vision = getattr(model.hf_config, "vision_config", None) if images else None
        graphs = config.compilation_config.cudagraph_capture_sizes or ()
        return Shape(
            tokens=config.scheduler_config.max_num_batched_tokens,
            requests=config.scheduler_config.max_num_seqs,
            hidden=hidden,
            inner=_shared(text, expert) if taken else dense,
            experts=0 if packed else taken,
            expert_inner=(expert if parallel.enable_expert_parallel else expert // ranks)
            if taken
            else 0,
            encoder=_size(vision, "hidden_size", "embed_dim"),
            encoder_inner=_size(vision, "intermediate_size", "mlp_dim"),
            vocabulary=int(model.get_vocab_size()),
            number_bytes=model.dtype.itemsize,
            layers=_size(text, "num_hidden_layers"),
            tensor_ranks=ranks,
            stages=parallel.pipeline_parallel_size,
            graphs=0 if model.enforce_eager else len(graphs),
            samples=model.runner_type == "generate",
        )

    def least_activation_bytes(self, release: Release = CURRENT) -> int:
        """The peak where FlashInfer samples."""
        least = release.least_logit_bytes or release.logit_bytes
        return self.activation_bytes(replace(release, logit_bytes=least))

    def activation_bytes(self, release: Release = CURRENT) -> int:
        """The peak of the profile run, and what the sampler keeps."""
        logits = self.requests * self.vocabulary if self.samples else 0
        sampler = logits * release.logit_bytes + self._rows(self.hidden)
        kept = logits * release.kept_logit_bytes + self._images() + ALLOCATOR_BYTES
        layer, workspaces = self._layer(), self._workspaces()
        if not release.keeps_workspaces:
            return int(kept + max(layer + workspaces, sampler))
        return int(kept + workspaces + max(layer, self._encoder(), sampler))

    def _rows(self, width: float) -> float:
        """Bytes of a tensor with a row of `width` numbers for each token of the pass."""
        return self.tokens * width * self.number_bytes

    def _layer(self) -> float:
        """A layer's input, residual, output and normed input, and of its feed-forward part the two
        projections and their product."""
        return self._rows(4 * self.hidden + 3 * self.inner / self.tensor_ranks)

    def _workspaces(self) -> float:
        """The two workspaces of experts (`fused_moe`, `workspace_shapes`)."""
        if not self.experts:
            return 0
        one, two = max(self.expert_inner, self.hidden), max(2 * self.expert_inner, self.hidden)
        return self._rows(self.experts * (one + two))

    def _images(self) -> float:
        """The encoder's outputs of as many tokens of images as a pass may have."""
        return self._image_tokens() * self.hidden * self.number_bytes

    def _encoder(self) -> float:
        """The peak of the encoder: four tensors of its width, and its feed-forward part."""
        width = 4 * self.encoder + 2 * self.encoder_inner
        return self._image_tokens() * MERGED * width * self.number_bytes

    def _image_tokens(self) -> int:
        return max(self.tokens, IMAGE_TOKENS) if self.encoder else 0


def _size(part: Any, *names: str) -> int:
    """The first of the names that is a number in a part of config.json; 0 if none is."""
    for name in names:
        # Transformers raises for a size that differs between layers.
        with contextlib.suppress(AttributeError, RuntimeError):
            if isinstance(value := getattr(part, name), int | float) and value:
                return int(value)
    return 0


def _shared(text: Any, expert: int) -> int:
    """The width of the experts that every token takes."""
    width = _size(text, "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size")
    return width or expert * _size(text, "n_shared_experts")
