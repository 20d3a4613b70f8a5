"""Seeded random weights with which the next token depends on the KV cache.

vLLM's `load_format=dummy` draws weights so small that the next token depends on the last token
only: a corrupted cache changes nothing, and no test of the cache can fail. Here a gain on the
query, key and value projections makes attention peaky, a gain on the output projection makes it
strong, and embeddings are weak: with tied embeddings the last token would otherwise predict itself.
The weights are drawn before vLLM packs them for its CPU kernels.
"""

import zlib

import torch
from vllm.config import ModelConfig
from vllm.config.load import LoadConfig
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

LOAD_FORMAT = "kvscope_seeded"

# Standard deviation of a projection is gain / sqrt(fan-in); other linear layers have gain 1.
PROJECTION_GAINS = {"qkv_proj": 1.5, "o_proj": 4.0, "out_proj": 4.0}
EMBEDDING_DEVIATION = 0.2


def standard_deviation(name: str, shape: torch.Size) -> float:
    """Standard deviation of the weights of parameter `name`."""
    if name.endswith("bias"):
        return 0.02
    if "embed" in name:
        return EMBEDDING_DEVIATION
    gain = next((g for part, g in PROJECTION_GAINS.items() if part in name), 1.0)
    return float(gain / shape[-1] ** 0.5)


@register_model_loader(LOAD_FORMAT)
class SeededLoader(BaseModelLoader):
    """Draws every weight from a generator seeded by (seed, parameter name); loads nothing.

    `model_loader_extra_config["seed"]` is the seed. A parameter's weights depend on its name and
    not on the order of the parameters.
    """

    def __init__(self, load_config: LoadConfig):
        super().__init__(load_config)
        self.seed = int(load_config.model_loader_extra_config.get("seed", 0))

    def download_model(self, model_config: ModelConfig) -> None:
        """No-op: there is nothing to download."""

    def load_weights(self, model: torch.nn.Module, model_config: ModelConfig) -> None:
        """Fill the model's parameters in place."""
        for name, parameter in model.named_parameters():
            if "norm" in name and name.endswith("weight"):
                parameter.data.fill_(1.0)
                continue
            generator = torch.Generator(device=parameter.device)
            # The CPU's generator uses only 32 bits of its seed.
            generator.manual_seed(zlib.crc32(f"{self.seed} {name}".encode()))
            deviation = standard_deviation(name, parameter.shape)
            parameter.data.normal_(0.0, deviation, generator=generator)
            if name.endswith(".A"):  # a state decays by its exponential
                parameter.data.abs_().neg_()
