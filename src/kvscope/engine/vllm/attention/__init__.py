"""kvscope's kernels as attention backends of vLLM, and their selection."""
