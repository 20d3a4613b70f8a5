"""Triton's kernels on a rehearsed GPU: its interpreter, with a GPU's rules for their arguments.

The interpreter has no clock: kernels that read one count their readings in an argument `counter`,
which is set to the host's time before each launch. So stamps are in order, and lie in their pass.
"""

import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from kvscope_rehearsal.device import initialize
from kvscope_rehearsal.memory import region_of
from kvscope_rehearsal.order import ORDER, current_stream


def set_counter(arguments: Mapping[str, Any]) -> None:
    """Set the counter of a kernel that records to the host's time in nanoseconds."""
    counter = arguments.get("counter")
    if counter is not None and arguments.get("INSTRUMENT", True):
        counter[0].clamp_(min=time.perf_counter_ns())


def install() -> None:
    """Take NVIDIA's driver for the one that Triton has, which interprets its kernels already."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("a rehearsed node needs TRITON_INTERPRET=1 in the environment")
    import torch
    from triton.backends import backends
    from triton.runtime.interpreter import GridExecutor

    for name, backend in backends.items():
        backend.driver.is_active = staticmethod(lambda name=name: name == "nvidia")
    launch = GridExecutor.__call__

    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        initialize()
        stream, touched = current_stream(), []
        given = dict(zip(self.arg_names, args, strict=False), **kwargs)
        for name, value in given.items():
            if not isinstance(value, torch.Tensor):
                continue
            region = region_of(value)
            if region is None and value.numel():
                raise RuntimeError(
                    f"an illegal memory access: {name} of kernel {self.fn.__name__} is in the "
                    "host's memory, which is not page-locked"
                )
            if region is not None:
                ORDER.touch(region, stream, self.fn.__name__)
                touched.append(region)
        # A GPU says nothing of what lanes without an element compute.
        with torch._C.DisableTorchFunction(), np.errstate(all="ignore"):
            set_counter(given)
            launch(self, *args, **kwargs)
        point = ORDER.launch(stream)
        for region in touched:
            region.written = point

    GridExecutor.__call__ = checked
