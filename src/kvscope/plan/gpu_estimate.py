"""The memory of a GPU that an experiment takes: an estimate from its settings, before it runs.

kvscope gives vLLM the number of blocks (`num_gpu_blocks_override`), so vLLM does not fit the cache
to the GPU, and an experiment that is too large would fail on the node. The CUDA context and cuBLAS
take a measured number of bytes (`OWN_BYTES`). The memory that PyTorch's allocator cannot use is
not known, so an experiment that takes more than `VLLM_SHARE` fits only tightly.
"""

from kvscope.base.errors import BadInput
from kvscope.plan.gpu_memory import GpuMemory
from kvscope.plan.parts import ChosenModel, Conditions
from kvscope.plan.wording import suggestion

# `gpu_memory_utilization` of vLLM 0.32 by default (vllm/config/cache.py): vLLM starts only if this
# share of the memory is free (`request_memory` in vllm/v1/worker/utils.py), and plans with it.
VLLM_SHARE = 0.92
# What the CUDA context and cuBLAS take before anything is allocated, measured on an H100
# (bench/results/gpu: `own_bytes`).
OWN_BYTES = 718_077_952
# Memory of GPUs by name: what the card itself says where that is known (a100-40gb: published logs;
# h100: bench/results/gpu), else what the vendor states.
MEMORY_BYTES = {
    "a100-40gb": 42_299_000_000,
    "a100-80gb": 80_000_000_000,
    "h100": 85_017_493_504,
    "h200": 141_000_000_000,
    "rtx-4090": 24_000_000_000,
}
NULL_BLOCKS = 1  # that vLLM's block pool keeps, beside the blocks of requests
# Numbers of 4 bytes for each entry of the vocabulary that the sampler holds at once: the logits as
# float32, their softmax, and as many random numbers (vllm/v1/sample: `Sampler.forward`,
# `random_sample`). vLLM samples so in its own warm-up, with `max_num_seqs` requests.
SAMPLED_BYTES = 3 * 4


def estimate(experiment: Conditions) -> GpuMemory:
    """The memory of an experiment that vLLM serves.

    - weights: all parameters, in the model's dtype;
    - cache: (blocks + the null block) x bytes of a block;
    - activations: `activation_bytes`;
    - copies: what the overflow policy gathers on the GPU (`Overflow.staging_bytes`);
    - event buffers: `TracingSettings.buffer_bytes`; their headers,
      64 bytes for each thread block of a pass, are a few MiB and not counted.
    """
    return GpuMemory(
        weight_bytes=experiment.model.weight_bytes,
        cache_bytes=(experiment.cache_blocks + NULL_BLOCKS) * experiment.block_bytes,
        activation_bytes=activation_bytes(experiment),
        copy_bytes=experiment.overflow.staging_bytes(experiment),
        event_buffer_bytes=experiment.tracing.buffer_bytes,
    )


def usable_bytes(gpu: str) -> int:
    """Bytes of a GPU's memory that an experiment may take; BadInput if it is not known."""
    return memory_bytes(gpu) - OWN_BYTES


def is_tight(gpu: str, needed_bytes: int) -> bool:
    """Whether an experiment takes more than the share with which vLLM itself would plan."""
    return needed_bytes > VLLM_SHARE * memory_bytes(gpu)


def memory_bytes(gpu: str) -> int:
    """A GPU's memory; BadInput if it is not known."""
    if gpu not in MEMORY_BYTES:
        raise BadInput(
            f"device.hardware is {gpu!r:.60}{suggestion(gpu, MEMORY_BYTES)} but must be one of "
            f"{', '.join(MEMORY_BYTES)}"
        )
    return MEMORY_BYTES[gpu]


def activation_bytes(experiment: Conditions) -> int:
    """The most that a forward pass holds beside weights and cache, or the sampler after it.

    A pass of T = `engine.max_num_batched_tokens` tokens holds T x `pass_width` numbers of the
    model's dtype, in the MLP of a layer. The sampler holds hidden states, and for each of
    `engine.max_num_seqs` requests the logits of the vocabulary, in the model's dtype and
    `SAMPLED_BYTES` besides.
    """
    model, engine = experiment.model, experiment.engine
    width = model.number_bytes
    forward = engine.max_num_batched_tokens * pass_width(model) * width
    hidden = engine.max_num_batched_tokens * 2 * model.hidden_size * width  # and vLLM's buffer
    logits = engine.max_num_seqs * model.vocab_size * (width + SAMPLED_BYTES)
    return max(forward, hidden + logits)


def pass_width(model: ChosenModel) -> int:
    """Numbers that a pass holds of each token at its peak, with h and i for hidden and inner size.

    In every family vLLM has a buffer for input embeddings (`inputs_embeds`, h). A gated MLP holds
    the layer's input, residual and own input (3 h), gate and up (2 i), and their product (i). OPT's
    holds embeddings of tokens and positions, the layer's input and residual (4 h), and its inner
    layer before and after ReLU (2 i). Source: vllm/model_executor/models/llama.py and opt.py of
    0.32, eager; tests/engine/test_gpu_memory.py measures both. Of experts, one is counted.
    """
    h, i = model.hidden_size, model.intermediate_size
    return h + (4 * h + 2 * i if model.family == "opt" else 3 * h + 3 * i)
