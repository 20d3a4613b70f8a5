"""Attention on an NVIDIA GPU by Triton kernels."""
