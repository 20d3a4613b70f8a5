"""The offload engine on the GPU gives the same tokens with every policy.

    python packages/kvscope-offload/bench/offload_exact.py [--device cpu]

In float32, random weights, OPT and Llama; exits with 1 if a token differs.
"""

import argparse
import sys
from typing import Any

import torch

from kvscope.plan.models import Model
from kvscope_offload.policies import POLICIES
from kvscope_offload.tensor_engine import TensorEngine

LENGTHS = ((53, 6), (16, 9), (5, 14), (33, 1), (120, 20))
KEYS: dict[str, Any] = {
    "gpu_kv": {"device_gib": 1.0},
    "zero_inference": {"device_gib": 0.05},
    "kv_only": {"host_gib": 1.0, "device_gib": 1e-3},
    "flexgen": {"host_gib": 1.0},
    "act_only": {"host_gib": 1.0},
    "token": {"host_gib": 1.0, "share": 0.5},
    "hybrid": {"host_gib": 1.0, "share": 0.5, "device_gib": 1e-3},
}


def model(family: Any, kv_heads: int, dtype: Any) -> Model:
    return Model(
        name="tiny",
        family=family,
        dtype=dtype,
        hidden_size=256,
        layers=4,
        attention_heads=8,
        kv_heads=kv_heads,
        head_size=32,
        intermediate_size=512,
        vocab_size=1024,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        rope_theta=None if family == "opt" else 10000.0,
        rope_scaling=None,
    )


def tokens(of: Model, policy: str, device: str) -> dict[int, list[int]]:
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(5, 1000, (n,), generator=generator).tolist() for n, _ in LENGTHS]
    chosen = POLICIES[policy](name=policy, **KEYS[policy])
    engine = TensorEngine(of, chosen, device=device)
    try:
        return engine.generate(prompts, [count for _, count in LENGTHS]).tokens
    finally:
        engine.close()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    device = parser.parse_args().device
    torch.backends.cuda.matmul.allow_tf32 = False
    failed = 0
    for family, kv_heads in (("opt", 8), ("llama", 8), ("llama", 2)):
        of = model(family, kv_heads, "float32")
        expected = tokens(of, "gpu_kv", device)
        for policy in KEYS:
            equal = tokens(of, policy, device) == expected
            failed += not equal
            print(
                f"{family}, {kv_heads} K and V heads, {policy}: {'equal' if equal else 'DIFFERS'}"
            )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
