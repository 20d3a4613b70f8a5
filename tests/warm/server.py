"""The warm process: `python -m tests.warm.server SOCKET PROCESS`; ends when that process has ended.

It listens, imports vLLM, and forks for each request.
A request is JSON with the three standard streams, and a zygote's link; the answer is the fork's
exit code, below zero for a signal. Whose connection closes before has been killed: then its fork
is, too.
"""

import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from selectors import EVENT_READ, DefaultSelector
from typing import Any

import kvscope
from kvscope.base.processes import end_with_parent
from kvscope.engine.vllm import preload

IMPORTED = (
    *(*preload.ENGINE, preload.CPU_WORKER),
    "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors",
    "vllm.model_executor.layers.quantization.online.base",
    "snakemake.cli",
)
MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Fork:
    """A fork, by its process id and its file descriptor, and who waits for it."""

    pid: int
    pidfd: int
    connection: socket.socket


def warm_up() -> None:
    """Do once what every engine would do again: import, look through all modules and objects."""
    import_all(IMPORTED)
    preload.register_kernels()
    names = (module.name for module in pkgutil.walk_packages(kvscope.__path__, "kvscope."))
    import_all(name for name in names if not name.endswith("__main__"))
    gc.collect()
    gc.freeze()
    gc.unfreeze = lambda: None  # what all forks share is no fork's garbage


def import_all(modules: Iterable[str]) -> None:
    for module in modules:
        with suppress(ImportError):  # modules for a GPU
            importlib.import_module(module)


def set_threads() -> None:
    """Set the numbers of threads from the environment, as importing torch and numba does.

    Numba takes numbers up to the one with which it was imported.
    """
    import torch

    if "OMP_NUM_THREADS" in os.environ:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    numba: Any = sys.modules.get("numba")
    if numba and "NUMBA_NUM_THREADS" in os.environ:
        numba.config.NUMBA_NUM_THREADS = int(os.environ["NUMBA_NUM_THREADS"])


def run(words: list[str]) -> None:
    """Run these arguments as the Python command does."""
    if words[0] == "-m":
        sys.argv = words[1:]
        if not hasattr(sys.modules.get(words[1]), "__path__"):
            sys.modules.pop(words[1], None)  # it is to run as __main__
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


def become(request: dict[str, Any], streams: list[int]) -> int:
    """Do, in a fork, what the requested process does; its exit code."""
    os.setsid()
    words, link = request["words"], streams[3:]
    for number, stream in enumerate(streams[:3]):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    set_threads()
    sys.path[:] = request["path"]
    tempfile.tempdir = None  # of the environment
    importlib.invalidate_caches()
    try:
        run([*words[:2], *map(str, link), *words[2 + len(link) :]])
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


class Server:
    """The warm process's requests and forks."""

    def __init__(self, address: str) -> None:
        self.ready = DefaultSelector()
        self.end_with_this = end_with_parent()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(f"{address}.new")
        self.listener.listen(64)
        os.rename(f"{address}.new", address)  # where it is, it listens
        self.ready.register(self.listener, EVENT_READ, self.accept)

    def accept(self) -> None:
        """Fork for a request."""
        connection, _ = self.listener.accept()
        message, streams, _, _ = socket.recv_fds(connection, MOST_BYTES, 4)
        if not message:  # who asks was killed
            connection.close()
            return
        pid = os.fork()
        if not pid:
            code = 1
            try:
                self.end_with_this()
                self.ready.close()
                self.listener.close()
                connection.close()
                code = become(json.loads(message), streams)
            finally:
                for stream in (sys.stdout, sys.stderr):
                    stream.flush()
                os._exit(code)
        for stream in streams:
            os.close(stream)
        fork = Fork(pid, os.pidfd_open(pid), connection)
        self.ready.register(fork.pidfd, EVENT_READ, lambda: self.ended(fork))
        self.ready.register(connection, EVENT_READ, lambda: self.abandoned(fork))

    def ended(self, fork: Fork) -> None:
        """Answer who waits for a fork."""
        code = os.waitstatus_to_exitcode(os.waitpid(fork.pid, 0)[1])
        with suppress(OSError):  # it was abandoned
            fork.connection.send(str(code).encode())
        self.ready.unregister(fork.pidfd)
        with suppress(KeyError):  # likewise
            self.ready.unregister(fork.connection)
        os.close(fork.pidfd)
        fork.connection.close()

    def abandoned(self, fork: Fork) -> None:
        """Kill a fork for which nothing waits."""
        self.ready.unregister(fork.connection)
        os.kill(fork.pid, signal.SIGKILL)

    def serve(self, process: int) -> None:
        """Serve until a process has ended."""
        over = False

        def end() -> None:
            nonlocal over
            over = True

        self.ready.register(os.pidfd_open(process), EVENT_READ, end)
        while not over:
            for key, _ in self.ready.select():
                if self.ready.get_map().get(key.fd) is key:  # nothing before it closed it
                    act: Callable[[], None] = key.data
                    act()


def main(address: str, process: int) -> None:
    server = Server(address)
    warm_up()
    server.serve(process)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
