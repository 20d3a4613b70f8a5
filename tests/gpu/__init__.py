"""The CUDA kernels, without a GPU: run by Triton's interpreter, and compiled for real ones."""
