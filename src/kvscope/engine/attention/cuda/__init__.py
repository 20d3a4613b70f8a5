"""Attention on an NVIDIA GPU: `instrumented` by Triton kernels."""
