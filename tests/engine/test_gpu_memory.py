"""The activations that a plan expects on a GPU are those that vLLM's models hold in a pass.

vLLM's own model code runs on the CPU. Its norms and its gated activation have CUDA kernels there
that write in place, or one output; here they allocate as these kernels do. The tensors that live at
once are counted operator by operator.
"""

import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not here; run `make env`")

pytestmark = [pytest.mark.engine, pytest.mark.slow]

TOKENS = 512


@pytest.mark.parametrize("model", ["tiny-gqa", "tiny-opt"])
def test_a_pass_holds_what_the_plan_expects(model: str, tmp_path: Path) -> None:
    """But vLLM's buffer of input embeddings, which is there before a pass."""
    from kvscope.plan.composition import Composer
    from kvscope.plan.gpu_estimate import pass_width
    from kvscope.plan.models import Model

    config = Composer(Path(__file__).parents[2] / "config").compose((("model", model),))
    result = Model.model_validate(config["model"])
    (tmp_path / "config.json").write_text(json.dumps(result.hf_config()))
    words = [sys.executable, __file__, str(tmp_path), str(TOKENS)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    held = int(done.stdout.splitlines()[-1]) / TOKENS / 4
    assert held == pytest.approx(pass_width(result) - result.hidden_size, rel=0.01)


def measure(directory: str, tokens: int) -> int:
    """The most bytes that live at once in a pass of so many tokens."""
    import os

    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves
    from vllm import LLM

    def storages(value):
        result = (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))
        return {one.untyped_storage()._cdata: one.untyped_storage() for one in result}

    class Live(TorchDispatchMode):
        """Counts the storages that operators make, while they live."""

        def __init__(self):
            super().__init__()
            tensors = [
                instance for instance in gc.get_objects() if isinstance(instance, torch.Tensor)
            ]
            self.before, self.made, self.most = storages(tensors), {}, 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            made = func(*args, **(kwargs or {}))
            self.made = {k: one for k, one in self.made.items() if not one[0].expired()}
            for key, storage in storages(made).items():
                if key not in self.before:
                    self.made[key] = (StorageWeakRef(storage), storage.nbytes())
            self.most = max(self.most, sum(size for _, size in self.made.values()))
            return made

    engine = LLM(
        directory,
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="float32",
        max_model_len=128,
        max_num_batched_tokens=tokens,
        max_num_seqs=4,
        num_gpu_blocks_override=65,
        block_size=32,
    ).llm_engine
    runner = engine.model_executor.driver_worker.worker.model_runner
    for module in runner.model.modules():
        if type(module).__name__ == "RMSNorm":
            module._forward_method = lambda x, residual=None, *_: (
                torch.empty_like(x) if residual is None else (x, residual)
            )
        if type(module).__name__ == "SiluAndMul":
            module._forward_method = lambda x: x.new_zeros(x.shape[0], x.shape[1] // 2)
    with Live() as live:
        runner._dummy_run(tokens)
    return live.most


if __name__ == "__main__":
    print(measure(sys.argv[1], int(sys.argv[2])))
