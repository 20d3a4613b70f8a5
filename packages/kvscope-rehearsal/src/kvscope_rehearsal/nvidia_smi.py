"""`nvidia-smi` of a rehearsed node: `python -m kvscope_rehearsal.nvidia_smi`, by `bin/nvidia-smi`.

It answers `-L` and `--query-gpu=NAME,… --format=csv[,noheader][,nounits] [--id=GPU,…]`.
"""

import argparse
import sys
from collections.abc import Sequence

from kvscope_rehearsal.node import Gpus, gpus_of, node_directory, uuid_of, visible_gpus

MIB = 2**20
NOT_SUPPORTED = "[N/A]"


def answer(gpus: Gpus, index: int, question: str, units: bool) -> str:
    """A value of a GPU as text; '[N/A]' for what only a real one has, such as clocks."""
    unit = " MiB" if units else ""
    columns = {
        "index": str(index),
        "name": gpus.name,
        "uuid": uuid_of(index),
        "memory.total": f"{gpus.memory_bytes // MIB}{unit}",
        "compute_cap": ".".join(map(str, gpus.capability)),
        "driver_version": "rehearsed",
    }
    return columns.get(question, NOT_SUPPORTED)


def main(words: Sequence[str]) -> int:
    """Print the queried values; 0, or 6 if a named GPU is missing, as nvidia-smi does."""
    parser = argparse.ArgumentParser("nvidia-smi")
    parser.add_argument("-L", "--list-gpus", action="store_true")
    parser.add_argument("--query-gpu", default="index,name,uuid,memory.total")
    parser.add_argument("--format", default="csv")
    parser.add_argument("-i", "--id", default=None)
    given = parser.parse_args(words)
    gpus = gpus_of(node_directory())
    asked = {} if given.id is None else {"CUDA_VISIBLE_DEVICES": given.id}
    chosen = visible_gpus(gpus, asked)
    if not chosen:
        print("No devices were found")
        return 6
    if given.list_gpus:
        for index in chosen:
            print(f"GPU {index}: {gpus.name} (UUID: {uuid_of(index)})")
        return 0
    questions, options = given.query_gpu.split(","), given.format.split(",")
    if "noheader" not in options:
        print(", ".join(questions))
    for index in chosen:
        print(", ".join(answer(gpus, index, q, "nounits" not in options) for q in questions))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
