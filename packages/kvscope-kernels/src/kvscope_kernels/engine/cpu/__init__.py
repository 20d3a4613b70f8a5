"""Attention on a CPU by Numba kernels."""
