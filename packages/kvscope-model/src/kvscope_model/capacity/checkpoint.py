"""The weights of a checkpoint, as the files beside its config.json say."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INDEX = "model.safetensors.index.json"
WHOLE = "consolidated*.safetensors"  # the same weights again, in Mistral's checkpoints
# Number types that vLLM loads in the model's own; weights in others keep theirs.
FLOATS = ("F64", "F32", "F16", "BF16")
LONGEST_HEADER = 100 * 2**20  # bytes, as the format says


@dataclass(frozen=True)
class Checkpoint:
    """Numbers that are loaded in the model's number type, bytes of all others, and their source.

    `damaged` is why the files cannot be used.
    """

    numbers: int
    other_bytes: int
    source: str
    damaged: str = ""

    def weight_bytes(self, number_bytes: int) -> int:
        """Bytes of the weights, as they are loaded."""
        return self.numbers * number_bytes + self.other_bytes

    def note(self, number_bytes: int, counted_bytes: int) -> str:
        """The source of the weights, and how they differ from config.json's, if by 2 % or more."""
        if self.damaged:
            return f"{self.damaged}; weights are counted from config.json"
        ours = self.weight_bytes(number_bytes)
        more = ours / counted_bytes - 1
        differs = f", {abs(more):.1%} {'more' if more > 0 else 'less'} than config.json's layers"
        return (
            f"weights are those of {self.source}: {ours / 2**30:,.2f} GiB"
            f"{differs if abs(more) > 0.02 else ''}"
        )


def beside(directory: Path, config: Mapping[str, Any]) -> Checkpoint | None:
    """The checkpoint in the directory of a config.json; None if there is none.

    Headers of the files say most. Where files are missing, the total of their index does.
    """
    index = directory / INDEX
    try:
        listed = _index(index) if index.is_file() else None
        whole = set(directory.glob(WHOLE))
        found = sorted({*directory.glob("*.safetensors")} - whole)
        files = [directory / name for name in sorted(listed[1])] if listed else found
        if files and all(file.is_file() for file in files):
            return _of_headers(files, config)
        return _of_index(listed[0], config) if listed else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return Checkpoint(0, 0, "", f"{directory}: its weights cannot be read: {error!s:.100}")


def _index(file: Path) -> tuple[int, set[str]]:
    """The bytes of all tensors, and the names of the files that have them."""
    index = json.loads(file.read_text("utf-8"))
    total = index["metadata"]["total_size"]
    if not isinstance(total, int | float) or total <= 0:
        raise ValueError(f"{file.name} has a total_size of {total!r:.20}")
    return int(total), set(index["weight_map"].values())


def _of_index(total_bytes: int, config: Mapping[str, Any]) -> Checkpoint:
    text = config.get("text_config") or {}
    kind = str(config.get("dtype") or config.get("torch_dtype") or text.get("dtype"))
    if kind == "float32":
        return Checkpoint(total_bytes // 4, 0, f"total_size of {INDEX}")
    return Checkpoint(0, total_bytes, f"total_size of {INDEX}")


def _of_headers(files: list[Path], config: Mapping[str, Any]) -> Checkpoint:
    numbers = other_bytes = 0
    layers = (config.get("text_config") or config).get("num_hidden_layers")
    for name, tensor in (entry for file in files for entry in _tensors(file)):
        if _of_drafts(name, layers):
            continue
        if tensor["dtype"] in FLOATS:
            numbers += math.prod(tensor["shape"])
        else:
            first, last = tensor["data_offsets"]
            other_bytes += last - first
    source = f"the headers of {len(files)} file{'s' * (len(files) > 1)} *.safetensors"
    return Checkpoint(numbers, other_bytes, source)


def _tensors(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The tensors of a file: 8 bytes are the length of a header in JSON."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= LONGEST_HEADER:
            raise ValueError(f"{file.name} has no header")
        header: dict[str, Any] = json.loads(stream.read(length))
    yield from ((name, tensor) for name, tensor in header.items() if name != "__metadata__")


def _of_drafts(name: str, layers: Any) -> bool:
    """Whether a tensor is of layers that only speculative decoding loads."""
    layer = re.search(r"\blayers\.(\d+)\.", name)
    beyond = layer and isinstance(layers, int) and int(layer[1]) >= layers
    return bool(beyond) or name.startswith(("mtp.", "model.mtp."))
