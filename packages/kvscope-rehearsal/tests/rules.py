"""Programs on a rehearsed GPU, each run in a process of its own: `python rules.py`, on a node.

Prints what came of each as JSON: null, or the error.
"""

import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

PROGRAMS: dict[str, Callable[[], None]] = {}


def program(function: Callable[[], None]) -> Callable[[], None]:
    PROGRAMS[function.__name__] = function
    return function


def pinned(size: int) -> Any:
    return torch.zeros(size, pin_memory=True)


@program
def what_is_computed_of_the_gpu_stays_there() -> None:
    x = torch.ones(3, device="cuda") * 2 + 1
    assert x.is_cuda
    assert str(x.device) == "cuda:0"
    assert x.view(3, 1).T.is_cuda
    assert torch.cat([x, x])[1:].is_cuda
    assert torch.empty_like(x).is_cuda
    assert torch.nn.functional.softmax(x, 0).is_cuda
    assert x.to(torch.int64).is_cuda
    assert x.tolist() == [3, 3, 3]
    assert not x.cpu().is_cuda
    assert x.cpu().tolist() == [3, 3, 3]


@program
def a_copy_to_the_host_is_another_memory() -> None:
    x = torch.zeros(2, device="cuda")
    there = x.cpu()
    x += 1
    assert there.tolist() == [0, 0]


@program
def page_locked_memory_is_known() -> None:
    assert pinned(4).is_pinned()
    assert torch.zeros(4).pin_memory().is_pinned()
    assert not torch.zeros(4).is_pinned()
    assert not torch.zeros(4, device="cuda").is_pinned()


@program
def devices_do_not_mix() -> None:
    torch.ones(3, device="cuda") + torch.ones(3)


@program
def the_hosts_indices_select_on_the_gpu() -> None:
    x = torch.arange(4, device="cuda")
    assert x[torch.tensor([1, 2])].tolist() == [1, 2]


@program
def numpy_has_no_gpu() -> None:
    torch.ones(3, device="cuda").numpy()


@program
def a_stream_that_does_not_wait() -> None:
    x = torch.ones(3, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        pinned(3).copy_(x, non_blocking=True)


@program
def a_stream_that_waits_for_an_event() -> None:
    x, other = torch.ones(3, device="cuda"), torch.cuda.Stream()
    other.wait_event(torch.cuda.current_stream().record_event())
    with torch.cuda.stream(other):
        host = pinned(3)
        host.copy_(x, non_blocking=True)
        other.synchronize()
    assert host.numpy().tolist() == [1, 1, 1]


@program
def an_event_from_before_the_write() -> None:
    x, other = torch.ones(3, device="cuda"), torch.cuda.Stream()
    event = torch.cuda.current_stream().record_event()
    x += 1
    other.wait_event(event)
    with torch.cuda.stream(other):
        x.clone()


@program
def an_item_that_is_set_is_written() -> None:
    x, other = torch.zeros(3, device="cuda"), torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    x[1:] = torch.ones(2, device="cuda")
    with torch.cuda.stream(other):
        x.clone()


@program
def a_host_that_does_not_wait() -> None:
    host = pinned(3)
    host.copy_(torch.ones(3, device="cuda"), non_blocking=True)
    host.numpy()


@program
def a_host_that_waits() -> None:
    host = pinned(3)
    host.copy_(torch.ones(3, device="cuda"), non_blocking=True)
    torch.cuda.synchronize()
    assert host.numpy().tolist() == [1, 1, 1]


@program
def a_copy_that_is_not_asked_to_be_asynchronous() -> None:
    host = pinned(3)
    host.copy_(torch.ones(3, device="cuda"))
    assert host.numpy().tolist() == [1, 1, 1]


@program
def ordinary_memory_is_copied_before_the_call_returns() -> None:
    host = torch.zeros(3)
    host.copy_(torch.ones(3, device="cuda"), non_blocking=True)
    assert host.numpy().tolist() == [1, 1, 1]


def use_on_another_stream(x: Any) -> Any:
    other = torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        pinned(3).copy_(x, non_blocking=True)
    return other


@program
def memory_that_is_freed_while_another_stream_reads_it() -> None:
    x = torch.ones(3, device="cuda")
    use_on_another_stream(x)
    del x
    torch.ones(3, device="cuda") + 1


@program
def memory_that_a_stream_is_recorded_for() -> None:
    x = torch.ones(3, device="cuda")
    x.record_stream(use_on_another_stream(x))
    del x
    torch.ones(3, device="cuda") + 1


@program
def memory_that_is_freed_after_the_other_stream_is_waited_for() -> None:
    x = torch.ones(3, device="cuda")
    torch.cuda.current_stream().wait_stream(use_on_another_stream(x))
    del x
    torch.ones(3, device="cuda") + 1


@program
def the_time_between_events_that_nobody_waited_for() -> None:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    last.record()
    first.elapsed_time(last)


@program
def the_time_between_events() -> None:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    last.record()
    last.synchronize()
    assert first.elapsed_time(last) >= 0


@program
def an_event_may_not_have_ended_yet() -> None:
    event = torch.cuda.current_stream().record_event()
    assert [event.query(), event.query()] == [False, True]


@program
def a_fork_after_cuda() -> None:
    torch.zeros(1, device="cuda")
    if os.fork() == 0:
        code = 0
        try:
            torch.zeros(1, device="cuda")
        except RuntimeError as error:
            code = 7 if "re-initialize CUDA" in str(error) else 1
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 7


@program
def a_fork_before_cuda() -> None:
    torch.cuda.device_count()  # as NVML's answer
    torch.cuda.is_available()
    if os.fork() == 0:
        torch.zeros(1, device="cuda")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0


@program
def two_processes_with_one_gpu() -> None:
    (held, holds), (ends, end) = os.pipe(), os.pipe()
    if os.fork() == 0:
        os.close(end)
        torch.zeros(1, device="cuda")
        os.write(holds, b".")
        os.read(ends, 1)  # until the other process closes its end
        os._exit(0)
    assert os.read(held, 1)
    torch.zeros(1, device="cuda")


@program
def a_gpu_that_is_not_visible() -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    assert torch.cuda.device_count() == 0
    torch.zeros(1, device="cuda")


@program
def functions_that_the_workers_for_cpus_replace() -> None:
    torch.cuda.current_stream = lambda *_: None
    torch.zeros(1, device="cuda")


@program
def memory_is_counted_and_freed() -> None:
    free, total = torch.cuda.mem_get_info()
    x = torch.zeros(1 << 20, device="cuda")
    assert free - torch.cuda.mem_get_info()[0] == 4 << 20
    assert torch.cuda.memory_allocated() >= 4 << 20
    del x
    assert torch.cuda.mem_get_info() == (free, total)


@program
def kernels_that_get_the_hosts_memory() -> None:
    launch(torch.zeros(4), torch.zeros(4, device="cuda"))


@program
def kernels_compute() -> None:
    x, y = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")
    launch(x, y)
    assert y.tolist() == [2, 2, 2, 2]


@program
def kernels_write_on_their_stream() -> None:
    x, y = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")
    launch(x, y)
    with torch.cuda.stream(torch.cuda.Stream()):
        y.clone()  # whose write nobody waited for


@program
def blocks_are_swapped_between_memories() -> None:
    cache, host = torch.arange(12, device="cuda").view(4, 3), torch.zeros(4, 3, dtype=torch.int64)
    torch.ops._C_cache_ops.swap_blocks(cache, host, 24, torch.tensor([[1, 0], [3, 2]]))
    assert host.tolist() == [[3, 4, 5], [0, 0, 0], [9, 10, 11], [0, 0, 0]]


@program
def blocks_that_are_both_on_the_host() -> None:
    host = torch.zeros(4, 3)
    torch.ops._C_cache_ops.swap_blocks(host, host, 12, torch.tensor([[1, 0]]))


@program
def blocks_beyond_the_memory() -> None:
    cache, host = torch.zeros(64, 3, device="cuda"), torch.zeros(65, 3)
    torch.ops._C_cache_ops.swap_blocks(cache, host, 12, torch.tensor([[64, 64]]))


def launch(x: Any, y: Any) -> None:
    import triton
    import triton.language as tl

    @triton.jit
    def double(x, y):  # type: ignore[no-untyped-def]
        at = tl.arange(0, 4)
        tl.store(y + at, 2 * tl.load(x + at))

    double[(1,)](x, y)


def outcome(function: Callable[[], None]) -> str | None:
    """Outcome of a program in a process of its own."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        said: str | None = None
        try:
            function()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, json.dumps(said).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        text = file.read()
    os.waitpid(pid, 0)
    result: str | None = json.loads(text) if text else "it was killed"
    return result


if __name__ == "__main__":
    from vllm.platforms import current_platform

    assert current_platform.is_cuda()
    assert np.__version__
    print(json.dumps({name: outcome(function) for name, function in PROGRAMS.items()}))
