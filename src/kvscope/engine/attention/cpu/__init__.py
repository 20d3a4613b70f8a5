"""Attention on a CPU: `instrumented` by Numba kernels, `paged` in plain PyTorch."""
