"""The functions of `torch.cuda` and `torch.accelerator` on a GPU of a rehearsed node.

A call of CUDA initializes it: the process takes its GPU, and its forks cannot use any, as with
CUDA.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from kvscope_rehearsal import memory
from kvscope_rehearsal.node import Gpus, gpus_of, hold, node_directory, uuid_of, visible_gpus
from kvscope_rehearsal.order import (
    DEFAULT,
    ORDER,
    Mark,
    current_stream,
    new_stream,
    set_current_stream,
)

CUDA = torch.device("cuda", 0)
CONTEXT_BYTES = 512 * 2**20  # of an H100 that CUDA and its libraries take
WARP_SIZE = 32
SHARED_BYTES = 228 * 2**10
L2_BYTES = 50 * 2**20


@dataclass
class Initialized:
    """Process that has initialized CUDA, and its GPU."""

    process: int | None = None
    gpu: int = 0


STATE = Initialized()
Installed = tuple[Any, str, Any]  # where a function is, its name, the function
_INSTALLED: list[Installed] = []


def initialize() -> None:
    """Take a GPU for this process, unless it has one; RuntimeError where CUDA cannot be used."""
    if STATE.process == os.getpid():
        return
    if STATE.process is not None:
        raise RuntimeError(
            "Cannot re-initialize CUDA in forked subprocess: it was initialized before the fork"
        )
    _refuse_replaced()
    directory = node_directory()
    visible = visible_gpus(gpus_of(directory))
    if not visible:
        raise RuntimeError("No CUDA GPUs are available: CUDA_VISIBLE_DEVICES names none")
    hold(directory, visible[0])
    STATE.process, STATE.gpu = os.getpid(), visible[0]


def _refuse_replaced() -> None:
    """RuntimeError if a function of the GPU is another one's by now, of vLLM for CPUs."""
    for place, name, function in _INSTALLED:
        attribute = getattr(place, name)
        if attribute is not function:
            where = getattr(attribute, "__module__", "?")
            raise RuntimeError(
                f"{place.__name__}.{name} is no GPU's any more: {where} has put another in its "
                "place, which holds for all forks of this process"
            )


def gpus() -> Gpus:
    """The GPUs of this process's node."""
    return gpus_of(node_directory())


def is_cuda(device: Any) -> bool:
    """True if this names a GPU: 'cuda', 'cuda:0', a torch.device, or a number."""
    if isinstance(device, torch.device):
        return bool(device.type == "cuda")
    if isinstance(device, int) and not isinstance(device, bool):
        return True
    return isinstance(device, str) and device.partition(":")[0] == "cuda"


def device_count() -> int:
    """Number of GPUs that this process sees; like NVML, it initializes nothing."""
    return len(visible_gpus(gpus()))


class Properties:
    """The result of `torch.cuda.get_device_properties`."""

    warp_size, is_integrated, is_multi_gpu_board = WARP_SIZE, 0, 0
    shared_memory_per_block_optin, L2_cache_size = SHARED_BYTES, L2_BYTES
    max_threads_per_multi_processor, regs_per_multiprocessor = 2048, 65536

    def __init__(self) -> None:
        visible = gpus()
        self.name, self.total_memory = visible.name, visible.memory_bytes
        self.major, self.minor = visible.capability
        self.multi_processor_count = visible.processors
        self.uuid = uuid_of(visible_gpus(visible)[0])


def properties(*_: Any) -> Properties:
    """The properties of this process's GPU."""
    initialize()
    return Properties()


def memory_info(*_: Any) -> tuple[int, int]:
    """Free and total bytes of this process's GPU."""
    initialize()
    total = gpus().memory_bytes
    return total - CONTEXT_BYTES - memory.held_bytes(), total


def synchronize(*_: Any) -> None:
    """Wait for all of the device."""
    initialize()
    ORDER.host_waits_for_all()


class Stream:
    """A stream of operations; without arguments a new one."""

    device, device_index, device_type, priority = CUDA, 0, 1, 0

    def __init__(self, *_: Any, number: int | None = None, **__: Any) -> None:
        initialize()
        self.number = new_stream() if number is None else number
        self._before: list[int] = []

    @property
    def cuda_stream(self) -> int:
        """The handle that C functions take."""
        return self.number

    @property
    def stream_id(self) -> int:
        """Its number."""
        return self.number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)

    def __enter__(self) -> "Stream":
        self._before.append(current_stream())
        set_current_stream(self.number)
        return self

    def __exit__(self, *_: object) -> None:
        set_current_stream(self._before.pop())

    def wait_event(self, event: "Event") -> None:
        """Order later operations after the event."""
        if event.mark is not None:
            ORDER.follow(self.number, event.mark.seen)

    def wait_stream(self, other: "Stream") -> None:
        """Order later operations after those that the other stream has now."""
        ORDER.follow(self.number, ORDER.snapshot(other.number))

    def record_event(self, event: "Event | None" = None) -> "Event":
        """Record an event here."""
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Wait for it."""
        ORDER.host_waits(self.number)

    def query(self) -> bool:
        """True: all operations have ended by the time of the question."""
        ORDER.host_waits(self.number)
        return True


class Event:
    """A place in a stream. It has ended when one asks for the second time."""

    def __init__(self, *_: Any, enable_timing: bool = False, **__: Any) -> None:
        initialize()
        self.mark: Mark | None = None
        self._timed, self._asked = enable_timing, False

    def record(self, stream: Stream | None = None) -> None:
        """Record the event in a stream, by default the current one."""
        ORDER.launch(number := current_stream() if stream is None else stream.number)
        self.mark, self._asked = Mark(number), False

    def wait(self, stream: Stream | None = None) -> None:
        """Make a stream wait for the event, by default the current one."""
        if self.mark is not None:
            ORDER.follow(current_stream() if stream is None else stream.number, self.mark.seen)

    def synchronize(self) -> None:
        """The host waits for it."""
        if self.mark is not None:
            ORDER.host_follows(self.mark.seen)

    def query(self) -> bool:
        """True if the event has ended; at times False, so that a program must be ready for it."""
        if self.mark is None or ORDER.host_knows(self.mark.seen):
            return True
        if self._asked:
            self.synchronize()
        self._asked = not self._asked
        return not self._asked

    def elapsed_time(self, end: "Event") -> float:
        """Milliseconds until another event; RuntimeError if the host has not waited for both."""
        return (end.ended_s() - self.ended_s()) * 1e3

    def ended_s(self) -> float:
        """End of the event; RuntimeError if that cannot be known."""
        if self.mark is None or not self._timed:
            raise RuntimeError("invalid resource handle: the event is not timed, or not recorded")
        if not ORDER.host_knows(self.mark.seen):
            raise RuntimeError("device not ready: the host has not waited for the event")
        return self.mark.at_s


def stream_of_thread(*_: Any) -> Stream:
    """This thread's current stream."""
    return Stream(number=current_stream())


@contextmanager
def on_stream(stream: Stream | None) -> Iterator[Stream | None]:
    """Context within which launches go to a stream; None changes nothing."""
    if stream is None:
        yield None
        return
    with stream:
        yield stream


def set_stream(stream: Stream) -> None:
    """Launch on a stream from now on."""
    set_current_stream(stream.number)


@contextmanager
def on_device(*_: Any) -> Iterator[None]:
    """There is one device."""
    yield


class Generator(torch._C.Generator):
    """A generator of random numbers; a GPU's are the CPU's."""

    def __new__(cls, device: Any = "cpu") -> "Generator":
        """Make it on the CPU."""
        generator: Generator = super().__new__(cls, torch.device("cpu"))  # type: ignore[call-arg]
        return generator


def record_stream(tensor: torch.Tensor, stream: Stream) -> None:
    """A stream uses a tensor, whose memory is not used again until it has, once it is freed."""
    initialize()
    with torch._C.DisableTorchFunction():  # it is no operation of the tensor's
        region = memory.region_of(tensor)
    if region is not None:
        region.uses.recorded.add(stream.number)


def _initialized(value: Any) -> Any:
    """A function that initializes CUDA and returns a value, or what a function gives."""

    def call(*_: Any, **__: Any) -> Any:
        initialize()
        return value() if callable(value) else value

    return call


def install() -> None:
    """Put these functions in the place of PyTorch's."""
    nothing, zero, none = _initialized(None), _initialized(0), _initialized(dict)
    held_bytes, most = _initialized(memory.held_bytes), _initialized(memory.most_bytes)
    shared = {
        "Stream": Stream,
        "Event": Event,
        "current_stream": stream_of_thread,
        "set_stream": set_stream,
        "synchronize": synchronize,
        "device_count": device_count,
        "empty_cache": nothing,
        "memory_stats": none,
        "memory_reserved": held_bytes,
        "memory_allocated": held_bytes,
        "max_memory_allocated": most,
        "max_memory_reserved": most,
        "reset_peak_memory_stats": _initialized(memory.forget_most),
        "is_available": lambda *_: device_count() > 0,
    }
    cuda = {
        "stream": on_stream,
        "default_stream": lambda *_: Stream(number=DEFAULT),
        "set_device": nothing,
        "current_device": zero,
        "get_device_capability": lambda *_: (properties().major, properties().minor),
        "get_device_properties": properties,
        "get_device_name": lambda *_: properties().name,
        "mem_get_info": memory_info,
        "manual_seed_all": nothing,
        "is_initialized": lambda *_: STATE.process == os.getpid(),
        "init": initialize,
        "_lazy_init": initialize,
        "device": on_device,
    }
    accelerator = {
        "set_device_index": nothing,
        "current_device_index": zero,
        "current_accelerator": lambda *_, **__: torch.device("cuda"),
        "empty_host_cache": nothing,
        "get_memory_info": memory_info,
        "device_index": on_device,
    }
    for module, functions in (
        (torch.cuda, shared | cuda),
        (torch.accelerator, shared | accelerator),
        (torch.cuda.memory, {"get_allocator_backend": lambda: "rehearsed"}),
        (torch, {"Event": Event, "Stream": Stream, "Generator": Generator}),
        (torch.Tensor, {"record_stream": record_stream}),
    ):
        for name, function in functions.items():
            setattr(module, name, function)
            _INSTALLED.append((module, name, function))
    _INSTALLED.append((torch.Tensor, "pin_memory", torch.Tensor.pin_memory))
