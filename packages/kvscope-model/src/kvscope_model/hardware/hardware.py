"""Rates and costs of a GPU and its host, read from the data file of its name."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from kvscope.api.errors import BadInput
from kvscope.api.files import files, reading
from kvscope.api.settings import complaints, documents, fields
from kvscope_model.bootstrap import bootstrap_interval
from kvscope_model.hardware.files import DIRECTORY, names

Rate = Annotated[fields.Real, Field(gt=0)]
Cost = Annotated[fields.Real, Field(ge=0)]
Share = Annotated[fields.Real, Field(gt=0, le=1)]


class Hardware(fields.Part):
    """One GPU and its host. docs/MODEL.md has the formulas in which these numbers stand.

    `sources` has, for each of the numbers, where it comes from. `bootstrap` has the fitted ones as
    fits to bootstrap samples give them; it is empty if none was fitted.
    """

    title: str
    sources: dict[str, str]
    bootstrap: list[dict[str, fields.Real]] = Field(default_factory=list)

    # What the vendor states.
    multiprocessors: fields.Count
    memory_bytes: Rate
    peak_flops_per_s: Rate  # dense, 16-bit operands, tensor cores
    memory_bytes_per_s: Rate
    link_bytes_per_s: Rate  # to the host, one way

    # What kernels reach.
    read_share: Share  # of memory_bytes_per_s, by a kernel that only reads
    l2_bytes_per_s: Rate
    gemm_flops_per_s: Rate
    weight_bytes_per_s: Rate  # weights read for few tokens
    attention_flops_per_s: Rate  # prefill attention (FlashAttention)
    prefix_token_s: Cost  # a cached token, in a wave of thread blocks of the chunked-prefill kernel
    chunk_token_s: Cost  # the same of a token of the chunk

    # What the host adds.
    layer_launch_s: Cost  # to launch the kernels of one layer
    request_s: Cost  # of a request of a pass
    vocabulary_entry_s: Cost  # of a vocabulary entry of a request that samples
    between_passes_s: Cost

    # Copies between the GPU and the host, each `copy_s` and its bytes.
    copy_issue_s: Cost  # the host's call
    copy_queue: fields.Count  # copies that a stream takes ahead
    pinned_copy_s: Cost
    pinned_out_bytes_per_s: Rate
    pinned_in_bytes_per_s: Rate
    pageable_copy_s: Cost
    pageable_out_bytes_per_s: Rate
    pageable_in_bytes_per_s: Rate

    def fitted(self) -> Iterator[tuple[str, float, float, float]]:
        """Name and value of each fitted number, and the ends of its interval.

        The interval is that of 95 % of the fits to bootstrap samples, widened to the value.
        """
        for name in self.bootstrap[0] if self.bootstrap else ():
            value = getattr(self, name)
            yield (
                name,
                value,
                *bootstrap_interval(value, [sample[name] for sample in self.bootstrap]),
            )


def data_file(name: str) -> Path:
    """Data file of a name; BadInput if the name is unknown."""
    present = names()
    if name not in present:
        raise BadInput(
            f"device.hardware is {name!r:.60}{complaints.suggestion(name, present)} but must be "
            f"one of {', '.join(present)}"
        )
    return DIRECTORY / f"{name}.yaml"


@cache
def sha256(name: str) -> str:
    """SHA-256 of the data file of a name; BadInput if the name is unknown."""
    return files.sha256_of(data_file(name))


@cache
def read(name: str) -> Hardware:
    """The hardware of a name; BadInput if it has no data file."""
    return load(data_file(name))


def load(path: Path) -> Hardware:
    """Read a data file: title, sources by a short name, of each number value and source, bootstrap.

    BadInput names the file and the number that lacks one of the two.
    """
    entries = documents.load_mapping(path)
    texts = entries.pop("sources", None)
    if not isinstance(texts, dict):
        raise BadInput(f"{path}: sources must be a group of texts by name")
    values: dict[str, Any] = {"title": entries.pop("title", None)}
    values["bootstrap"] = entries.pop("bootstrap", [])
    sources = {}
    for key, entry in entries.items():
        if not isinstance(entry, dict) or set(entry) != {"value", "source"}:
            raise BadInput(f"{path}: {key} must have a value and a source, and nothing else")
        if entry["source"] not in texts:
            raise BadInput(f"{path}: {key} has the source {entry['source']!r}, not in sources")
        values[key], sources[key] = entry["value"], texts[entry["source"]]
    try:
        return Hardware.model_validate(values | {"sources": sources})
    except ValidationError as error:
        raise BadInput(f"{path}: {': '.join(reading.first_fault(error))}") from None
