"""A GPU's rules on top of PyTorch's CPU tensors: every function of torch goes through `OnGpu`.

A tensor is on the GPU if its memory is (`memory`). What is computed of such tensors is, too; they
do not mix with tensors of the host; and each operation keeps the order of streams (`order`).
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from kvscope_rehearsal.device import CUDA, initialize, is_cuda
from kvscope_rehearsal.memory import Region, allocate, region_of
from kvscope_rehearsal.order import ORDER, current_stream

# Copies between host and GPU, and functions that take the host's indices and scalars for a GPU's.
MIXING = frozenset(
    ("copy_", "__getitem__", "__setitem__", "index_put_", "index_put", "set_", "data")
)
HOST_READS = frozenset(("numpy", "tolist", "item", "__array__", "__bool__", "__int__", "__float__"))
CONVERSIONS = frozenset(("to", "cpu", "cuda", "pin_memory", "_to_copy"))


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """The tensors among values, within lists, tuples and dictionaries, too."""
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple | dict):
            yield from tensors_in(value)


class OnGpu(TorchFunctionMode):
    """The rules, in one thread."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch by a GPU's rules."""
        kwargs = dict(kwargs or {})
        if (getter := GETTERS.get(func)) is not None:
            return getter(args[0])
        name = getattr(func, "__name__", "")
        if name == "__get__" or name == "__set__":
            return func(*args, **kwargs)
        if name in CONVERSIONS:
            return converted(func, name, args, kwargs)
        return computed(func, name, args, kwargs)


def is_on_gpu(tensor: torch.Tensor) -> bool:
    """True if a tensor is on the GPU."""
    region = region_of(tensor)
    return region is not None and not region.pinned


def device_of(tensor: torch.Tensor) -> torch.device:
    """The device of a tensor."""
    device: torch.device = torch.Tensor.device.__get__(tensor)
    return CUDA if is_on_gpu(tensor) else device


def is_pinned(tensor: torch.Tensor) -> bool:
    """True if a tensor is in page-locked memory of the host."""
    region = region_of(tensor)
    return region is not None and region.pinned


def computed(func: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
    """The results of an operation, on the device that they belong to."""
    wanted, pin = kwargs.get("device"), bool(kwargs.pop("pin_memory", False))
    if is_cuda(wanted):
        kwargs["device"] = torch.device("cpu")
    given = [*tensors_in(args), *tensors_in(kwargs)]
    regions = [(tensor, region_of(tensor)) for tensor in given]
    on_gpu = is_cuda(wanted)
    if wanted is None:
        on_gpu = any(region is not None and not region.pinned for _, region in regions)
    if on_gpu:
        initialize()
    touched = {id(region): region for _, region in regions if region is not None}
    if on_gpu or any(not region.pinned for region in touched.values()):
        if not isinstance(func, torch._ops.OpOverloadPacket | torch._ops.OpOverload):
            _refuse_mixing(name, regions)
        for region in touched.values():
            ORDER.touch(region, current_stream(), name)
    elif touched and name in HOST_READS:
        for region in touched.values():
            ORDER.read_on_host(region, name)
    if name == "numpy" and on_gpu:
        raise TypeError("can't convert cuda:0 device type tensor to numpy: use Tensor.cpu() first")
    result = func(*args, **kwargs)
    if name in HOST_READS:
        if on_gpu:
            ORDER.host_waits(current_stream())
        return result
    if name == "__setitem__" and (target := region_of(args[0])) is not None:
        target.written = ORDER.launch(current_stream())
    if name == "copy_":
        note_copy(args[0], _argument(args, kwargs, 1, "src"), bool(_blocking(args, kwargs)))
        return result
    return _placed(result, on_gpu, pin, {id(tensor) for tensor in given})


def converted(func: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
    """The tensor on another device, or in page-locked memory."""
    tensor = args[0]
    if name == "pin_memory":
        return tensor if is_pinned(tensor) else allocate(tensor, pinned=True)
    was, target = is_on_gpu(tensor), None
    if name == "cpu":
        target = torch.device("cpu")
    elif name == "cuda":
        return _moved(tensor, True, non_blocking=bool(kwargs.get("non_blocking")))
    else:
        args, kwargs, target = _without_device(args, kwargs)
    non_blocking = bool(kwargs.get("non_blocking"))
    to_gpu = was if target is None else is_cuda(target)
    if to_gpu != was:
        moved = _moved(tensor, to_gpu, non_blocking)
        if name == "cpu" or (len(args) == 1 and not kwargs.keys() - {"non_blocking", "copy"}):
            return moved
        args, kwargs = (moved, *args[1:]), {k: v for k, v in kwargs.items() if k != "copy"}
    elif name == "cpu":
        return tensor
    return computed(func, name, args, kwargs)


def _without_device(args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
    """Arguments of `to` without the device, and the device, or None without one."""
    rest, target = [args[0]], kwargs.pop("device", None)
    for value in args[1:]:
        if isinstance(value, torch.Tensor):
            target, value = device_of(value), value.dtype
        if isinstance(value, torch.device | str) or (
            isinstance(value, int) and not isinstance(value, bool) and len(rest) == 1
        ):
            target = value
            continue
        if value is not None:  # as a module's `to` has it for a number type that stays
            rest.append(value)
    if len(rest) > 1 and isinstance(rest[1], bool):  # to(device, non_blocking)
        kwargs["non_blocking"] = rest.pop(1)
    return tuple(rest), kwargs, target


def _moved(tensor: torch.Tensor, to_gpu: bool, non_blocking: bool) -> torch.Tensor:
    """A copy on the other device."""
    if is_on_gpu(tensor) == to_gpu:
        return tensor
    initialize()
    copied: torch.Tensor = allocate(tensor) if to_gpu else tensor.clone()
    note_copy(copied, tensor, non_blocking)
    return copied


def note_copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> None:
    """Note a copy's order: the host waits for it unless it need not, and memory is page-locked."""
    to, of, stream = region_of(target), region_of(source), current_stream()
    if not any(region is not None and not region.pinned for region in (to, of)):
        for region in (to, of):
            if region is not None:
                ORDER.read_on_host(region, "copy_")
        return
    for region in (to, of):
        if region is not None:
            ORDER.touch(region, stream, "copy_")
    point = ORDER.launch(stream)
    if to is not None:
        to.written = point
    both = to is not None and of is not None
    if not (both and (non_blocking or not (to.pinned or of.pinned))):  # type: ignore[union-attr]
        ORDER.host_waits(stream)


def _refuse_mixing(name: str, regions: Iterable[tuple[torch.Tensor, Region | None]]) -> None:
    """RuntimeError if an operation takes tensors of both devices, as PyTorch's."""
    if name in MIXING:
        return
    tensors = [(t, r is not None and not r.pinned) for t, r in regions if t.dim() and t.numel()]
    if len({on_gpu for _, on_gpu in tensors}) > 1:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but {name} got some on cuda:0 and "
            "some on the CPU"
        )


def _placed(result: Any, on_gpu: bool, pin: bool, given: set[int]) -> Any:
    """Results in their memory: new ones on the GPU are moved to it."""
    if isinstance(result, torch.Tensor):
        if not (on_gpu or pin):
            return result
        region = region_of(result)
        if region is None and id(result) not in given:
            result = allocate(result, pinned=not on_gpu)
            region = region_of(result)
        if on_gpu and region is not None:
            region.written = ORDER.launch(current_stream())
        return result
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return type(result)(*(_placed(r, on_gpu, pin, given) for r in result))
    if isinstance(result, list | tuple):
        kind: Any = type(result)
        try:
            return kind([_placed(r, on_gpu, pin, given) for r in result])
        except TypeError:  # a structure of torch's own
            return result
    return result


def _argument(args: Any, kwargs: Any, place: int, name: str) -> Any:
    return args[place] if len(args) > place else kwargs[name]


def _blocking(args: Any, kwargs: Any) -> Any:
    return args[2] if len(args) > 2 else kwargs.get("non_blocking")


GETTERS: dict[Any, Callable[[torch.Tensor], Any]] = {
    torch.Tensor.is_cuda.__get__: is_on_gpu,
    torch.Tensor.device.__get__: device_of,
    torch.Tensor.is_cpu.__get__: lambda tensor: not is_on_gpu(tensor),
    torch.Tensor.is_pinned: is_pinned,
    torch.Tensor.get_device: lambda tensor: 0 if is_on_gpu(tensor) else -1,
}


def install() -> None:
    """Have this thread and all that begin from now on follow the rules, and operators in Python."""
    OnGpu().__enter__()
    run, implement = threading.Thread.run, torch.library.Library.impl

    def run_thread(self: threading.Thread) -> None:
        with OnGpu():
            run(self)

    def implement_by_rules(
        self: Any, op_name: Any, fn: Any, *args: Any, **kwargs: Any
    ) -> Any:  # an operator runs without PyTorch's modes
        @wraps(fn)
        def operate(*given: Any, **named: Any) -> Any:
            with OnGpu():
                return fn(*given, **named)

        return implement(self, op_name, operate, *args, **kwargs)

    threading.Thread.run = run_thread  # type: ignore[method-assign]
    torch.library.Library.impl = implement_by_rules  # type: ignore[method-assign]
