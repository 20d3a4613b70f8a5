"""GPUs that plans can be for: name, memory and compute capability, as CUDA says them."""

from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from kvscope.api.errors import BadInput
from kvscope.api.files import reading
from kvscope.api.settings import complaints, documents, fields

FILE = Path(__file__).with_name("gpus.yaml")
CPU = "cpu"
"""In the place of a GPU's name: vLLM's own platform, which is this machine's."""
WITHOUT = {
    "v100": "vLLM's releases are built for compute capability 7.5 and above, and a V100 has 7.0",
    "mi": "its maker is AMD, and plans are those of vLLM's CUDA platform",
}
"""GPUs that plans cannot be for, by how their names begin, and why."""


class Gpu(fields.Part):
    """A GPU. `hardware` names the speeds of `kvscope_model.hardware`, where they are known.

    The memory of a `unified` GPU is the host's.
    """

    name: str
    memory_gib: Annotated[fields.Real, Field(gt=0)]
    major: fields.Count
    minor: Annotated[int, Field(ge=0)]
    processors: fields.Count
    hardware: str | None = None
    unified: bool = False

    @property
    def capability(self) -> tuple[int, int]:
        """CUDA's compute capability."""
        return self.major, self.minor

    @property
    def memory_bytes(self) -> int:
        """Bytes of its memory that CUDA counts."""
        return int(self.memory_gib * 2**30)

    @property
    def default_limits(self) -> tuple[int, int]:
        """vLLM's default `max_num_batched_tokens` and `max_num_seqs` of a server on it.

        They are those of `EngineArgs.get_batch_defaults`, before the lengths of requests matter.
        """
        if self.memory_gib >= 160:
            return 16384, 1024
        return (8192, 1024) if self.memory_gib >= 70 and "A100" not in self.name else (2048, 256)


@cache
def gpus() -> dict[str, Gpu]:
    """The GPUs by their short names."""
    try:
        return {
            name: Gpu.model_validate(entry) for name, entry in documents.load_mapping(FILE).items()
        }
    except ValidationError as error:
        raise BadInput(f"{FILE}: {': '.join(reading.first_fault(error))}") from None


def gpu_of(name: str) -> Gpu:
    """The GPU of a name; BadInput with a suggestion if there is none."""
    known = gpus()
    wanted = name.lower().replace("_", "-").removeprefix("nvidia-")
    for beginning, why in WITHOUT.items():
        if wanted.removeprefix("tesla-").startswith(beginning):
            raise BadInput(f"--gpu is {name!r:.60}, but {why}; choose one of {', '.join(known)}")
    if wanted not in known:
        raise BadInput(
            f"--gpu is {name!r:.60}{complaints.suggestion(wanted, known)} but must be one of "
            f"{', '.join(known)}, or {CPU} for the plan of this machine's CPU; another GPU is "
            f"added to {FILE}"
        )
    return known[wanted]
