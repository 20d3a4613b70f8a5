"""Host memory for tensors that cross the link.

torch's pinned allocator rounds each tensor up to a power of two, up to twice its size; a pool of
tens of GiB cannot afford that. Plain memory, registered with the driver afterwards, is as large as
it needs to be.
"""

import weakref

import torch

from kvscope.api.errors import KvscopeError


def host_tensor(shape: tuple[int, ...], dtype: torch.dtype, pinned: bool) -> torch.Tensor:
    """Zeroed host memory, page-locked for the GPU if `pinned`; KvscopeError if it cannot be."""
    tensor = torch.zeros(shape, dtype=dtype)
    if pinned and tensor.numel():
        runtime = torch.cuda.cudart()
        size = tensor.numel() * tensor.element_size()
        code = int(runtime.cudaHostRegister(tensor.data_ptr(), size, 0))
        if code:
            raise KvscopeError(f"{size:,} bytes of host memory could not be pinned (CUDA {code})")
        weakref.finalize(tensor.untyped_storage(), runtime.cudaHostUnregister, tensor.data_ptr())
    return tensor
