"""A rehearsal of device=cuda: GPUs made of this machine's CPU, on which vLLM's CUDA code runs.

A node (`node`) is a directory that processes have on their search path. In it vLLM finds a
platform plugin (`platform`), which puts a GPU's rules on top of PyTorch's CPU tensors (`device`,
`mode`, `memory`, `order`), and stand-ins for what vLLM has compiled for CUDA (`operators`).
Triton's kernels run in its interpreter (`kernels`). Results are a GPU's; times are not.
"""
