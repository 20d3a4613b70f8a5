"""The zygote: imports vLLM once, and forks a measured process for each experiment.

Run as `python -m kvscope.run.zygote DESCRIPTOR MODULE…`: its end of a `Link` to the campaign, and
the modules that the device's engines need (`Platform.worker_modules`). A request has the directory
of an attempt, and comes with the engine's end of another link and a log file; the answer is the
fork's process id. The fork is `kvscope.run.parked`.

- No parallel region of OpenMP runs before a fork: libgomp's threads would not exist in the fork,
  which would wait for them for ever.
- Nothing calls CUDA before a fork, which could not use it.
- A fork does not end with the zygote but with its link, which the campaign alone holds.
"""

import gc
import importlib
import os
import pkgutil
import signal
import sys
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import kvscope
from kvscope.engine.vllm import preload
from kvscope.run.link import Link, Lost

# Packages of measured processes; every fork needs the modules that they import.
MEASURED_PARTS = ("kvscope.engine", "kvscope.run", "kvscope.workload")


def main(descriptor: int, modules: Sequence[str]) -> None:
    """Warm up with these modules, say so, and fork on demand until the campaign closes the link."""
    link = Link.of(descriptor)
    warm_up(modules)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks are reaped; their links tell the campaign
    with suppress(Lost):
        link.send(warm=True)
        while True:
            request, (engine, log) = link.receive()
            pid = fork(link, request, engine, log)
            os.close(engine)
            os.close(log)
            link.send(pid=pid)


def warm_up(modules: Sequence[str]) -> None:
    """Do once the work that every engine would repeat: imports, and searches of all modules and
    objects."""
    import torch

    torch.set_num_threads(1)
    import_all((*modules, *preload.ENGINE))
    preload.register_kernels()
    names = (module.name for module in pkgutil.walk_packages(kvscope.__path__, "kvscope."))
    import_all(name for name in names if name.startswith(MEASURED_PARTS) and name != __name__)
    gc.collect()
    gc.freeze()
    gc.unfreeze = _nothing  # objects that all forks share are not garbage of a fork


def import_all(modules: Iterable[str]) -> None:
    """Import modules, except those that need what is not here, such as a GPU's libraries."""
    for module in modules:
        with suppress(ImportError):
            importlib.import_module(module)


def fork(link: Link, request: dict[str, object], engine: int, log: int) -> int:
    """Fork a measured process; its id, in the zygote. In the fork this does not return."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        link.close()
        for stream in (1, 2):
            os.dup2(log, stream)
        os.close(log)
        set_threads(int(str(request["threads"])))
        from kvscope.run import parked

        directory, annotate = Path(str(request["directory"])), bool(request["annotate"])
        parked.main(directory, Link.of(engine), annotate)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        for output in (sys.stdout, sys.stderr):
            output.flush()
    os._exit(code)


def set_threads(count: int) -> None:
    """Do what OMP_NUM_THREADS and Numba's do when torch and numba are imported."""
    import torch

    torch.set_num_threads(count)
    os.environ["OMP_NUM_THREADS"] = os.environ["NUMBA_NUM_THREADS"] = str(count)
    numba: Any = sys.modules.get("numba")  # of a package's kernels, or of vLLM
    if numba:
        numba.config.NUMBA_NUM_THREADS = count


def _nothing() -> None:
    """No-op replacement for gc.unfreeze."""


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
