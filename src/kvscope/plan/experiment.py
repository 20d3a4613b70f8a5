"""An experiment: one frozen, validated object, its id, and its file.

The id is a hash of the settings, and is computed again wherever an experiment.yaml is read.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from kvscope.base.errors import BadInput
from kvscope.base.layout import EXPERIMENT_FILE, EXPERIMENTS
from kvscope.plan import documents, registry, rules, tracers, vocabulary
from kvscope.plan.complaints import Origin, validation_message
from kvscope.plan.device import Device
from kvscope.plan.fields import GIB, MAX_REPEATS, Label, Part, Whole
from kvscope.plan.models import BYTES, KvLayers, Model
from kvscope.plan.parts import CacheSettings, EngineSettings, ProfilerSettings, TracingSettings
from kvscope.plan.policy import Batching, Overflow
from kvscope.plan.registry import OneOf
from kvscope.plan.repeats import RepeatsField, StoppingRule
from kvscope.plan.workload import Workload
from kvscope.tables.kv_group import KvGroup
from kvscope.tables.runfile import RUN_FILE, read_record

ID_DIGITS = 10


class Experiment(Part):
    """Everything that determines a result, and nothing else."""

    model: Annotated[Model, Label("model", "{}")]
    device: Annotated[Device, OneOf("device"), Label("device", "{}")]
    engine: EngineSettings
    workload: Annotated[Workload, OneOf("workload"), Label("workload", "{}")]
    batching: Annotated[Batching, OneOf("batching"), Label("batching policy", "{}")]
    overflow: Annotated[Overflow, OneOf("overflow"), Label("overflow policy", "{}")]
    cache: CacheSettings
    tracing: TracingSettings
    profiler: ProfilerSettings
    # NumPy's legacy generator, which the Zipf workload is defined by, takes 32 bits.
    seed: Annotated[Whole, Field(ge=0, lt=2**32)]
    repeats: RepeatsField
    warmup: Annotated[Whole, Field(ge=0, le=MAX_REPEATS)]
    # On a cluster, whether its node runs nothing else; on one machine nothing else runs anyway.
    exclusive: Annotated[bool, Label("alone on its node")] = False

    @model_validator(mode="after")
    def _possible(self) -> "Experiment":
        rules.check(self)
        return self

    @property
    def canonical_json(self) -> str:
        """The text that the id hashes: keys sorted, no spaces, keys at their default left out.

        Because defaults are left out, ids do not change when a later version adds a key with a
        default. A file enters by the SHA-256 of its content, not by its path.
        """
        value = self.to_dict(exclude_defaults=True)
        for name, part in self:
            if isinstance(part, Part):
                fields = {key: getattr(part, key) for key in part.in_id}
                value[name] |= {key: item for key, item in fields.items() if item is not None}
        for path in self.workload.files:
            value["workload"].pop(path, None)
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)

    def to_dict(self, exclude_defaults: bool = False) -> dict[str, Any]:
        """All values as plain mappings, without keys that are null by default and in fact."""
        return self.model_dump(exclude_defaults=exclude_defaults)

    @property
    def id(self) -> str:
        """The slug and the first 10 hex digits of the SHA-256 of the canonical JSON."""
        digest = hashlib.sha256(self.canonical_json.encode()).hexdigest()
        return f"{self.slug}-{digest[:ID_DIGITS]}"

    @property
    def slug(self) -> str:
        """A short readable name: model, workload, batching, overflow, cache, tracing."""
        requests = getattr(self.workload, "num_requests", None) or ""
        cache = self.cache
        room = f"b{cache.blocks}" if cache.blocks else f"g{cache.gib:g}".replace("+", "")
        room = f"o{cache.oversubscription}".removesuffix(".0") if cache.oversubscription else room
        traced = "" if self.tracing.name == "none" else f"-{self.tracing.name}"
        alone = "-exclusive" if self.exclusive else ""
        parts = (
            f"{self.model.name}{self.device.slug}",
            f"{self.workload.slug}{requests}",
            self.batching.slug,
            self.overflow.slug,
            f"{room}x{cache.block_size}{traced}{alone}",
        )
        return "-".join(map(str, parts))

    @property
    def stopping(self) -> StoppingRule:
        """The rule that ends its repeats."""
        return StoppingRule.of(self.repeats)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that the newest token has in the cache, over all layers."""
        return self.model.token_elements * self.kv_width

    @property
    def kv_width(self) -> int:
        """Bytes of a number that the cache keeps of a token."""
        return BYTES[self.model.dtype if self.cache.dtype == "auto" else self.cache.dtype]

    @property
    def kv_groups(self) -> tuple[KvGroup, ...]:
        """The KV groups of the model's layers."""
        return self.model.kv_groups(self.cache.block_size, self.kv_width)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of the pool, over all layers of a KV group."""
        return self.cache.block_size * self.model.block_elements * self.kv_width

    @property
    def request_blocks(self) -> int:
        """Blocks, over all KV groups, with which vLLM takes the longest request."""
        return sum(self.model.groups(kind) * self._most_blocks(kind) for kind in self.model.kept)

    def _most_blocks(self, kind: KvLayers) -> int:
        """Blocks that a request needs of one KV group, as vLLM counts."""
        longest, passes = self.engine.max_model_len, self.engine.max_num_batched_tokens
        window = kind.window_tokens or 0
        return kind.of.admitted_blocks(longest, passes, self.cache.block_size, window)

    @property
    def cache_blocks(self) -> int:
        """Blocks that requests can use; of cache.gib, as many as fit."""
        if self.cache.blocks is not None:
            return self.cache.blocks
        return int((self.cache.gib or 0) * GIB // self.block_bytes)

    @property
    def host_blocks(self) -> int:
        """Blocks of the host pool; 0 where the policy has none."""
        return self.overflow.pool_blocks(self)

    @property
    def cache_tokens(self) -> int:
        """Tokens whose K and V fit into the cache."""
        return self.cache_blocks * self.cache.block_size


@cache
def _declared_label(key: str) -> Label | None:
    """The label that the class of a dotted key declares for it; None without a label."""
    section, _, name = key.partition(".")
    field = Experiment.model_fields.get(section)
    if field and name and isinstance(field.annotation, type):
        field = field.annotation.model_fields.get(name)
    marks = (mark for mark in (field.metadata if field else ()) if isinstance(mark, Label))
    return next(marks, None) or registry.label(key)


vocabulary.SOURCES.append(_declared_label)


def parse(value: Any, origin: Origin) -> Experiment:
    """Make an experiment of plain mappings.

    `origin` maps a dotted key to the place of its value; BadInput names both.
    """
    try:
        return Experiment.model_validate(value)
    except ValidationError as error:
        raise validation_message(Experiment, error, origin, value) from None


def load(path: Path) -> Experiment:
    """Read an experiment.yaml.

    BadInput names the file and the key if it cannot be used, and both ids if it has another id than
    the run beside it, or than its directory in results/experiments/.
    """
    settings = documents.load_mapping(path)
    require_id(path, settings)
    return _parse_file(path, settings)


def read_settings(directory: Path) -> dict[str, Any]:
    """The settings in the experiment.yaml of a run's directory; empty without that file.

    BadInput as for `load`, except that the id is not computed of settings that name an option of a
    package that is not installed here (`unknown_options`).
    """
    path = directory / EXPERIMENT_FILE
    if not path.exists():
        return {}
    settings = documents.load_mapping(path)
    if not unknown_options(settings):
        require_id(path, settings)
    return settings


def unknown_options(settings: dict[str, Any]) -> list[str]:
    """The options, as 'overflow=stash', that need a package that is not installed."""
    installed = {kind: {*registry.find_registered(kind)} for kind in registry.KINDS}
    if not tracers.is_installed():
        installed["tracing"] = {"none"}
    sections = ((kind, settings.get(kind)) for kind in installed)
    named = [(kind, part.get("name")) for kind, part in sections if isinstance(part, dict)]
    return [
        f"{kind}={name}"
        for kind, name in named
        if isinstance(name, str) and name not in installed[kind]
    ]


def require_id(path: Path, settings: dict[str, Any]) -> None:
    """Raise BadInput if an experiment.yaml with these settings belongs to another experiment."""
    experiment = _parse_file(path, settings)
    for expected, place in ids_beside(path):
        if experiment.id != expected:
            raise BadInput(
                f"{path}: its settings are those of experiment {experiment.id}, but {place} is of "
                f"{expected}; restore the file (planning again writes it), or copy it elsewhere to "
                f"run it as an experiment of its own{_hint(experiment)}"
            )


def _hint(experiment: Experiment) -> str:
    """Hint that the id depends on numbers outside experiment.yaml; '' unless it does."""
    parts = [part for _, part in experiment if isinstance(part, Part)]
    if all(key in type(part).model_fields for part in parts for key in part.in_id):
        return ""
    return " (a kvscope with other numbers of the hardware computes another id)"


def ids_beside(path: Path) -> Iterator[tuple[str, Path]]:
    """The ids that an experiment.yaml must have: of its directory, and of the run in there."""
    directory = path.parent.resolve()
    if directory.parent.name == EXPERIMENTS:
        yield directory.name, directory
    with suppress(BadInput):  # there is no run, or it has to be measured again
        yield read_record(path.parent).experiment_id, path.parent / RUN_FILE


def _parse_file(path: Path, settings: dict[str, Any]) -> Experiment:
    return parse(settings, lambda key: str(path))


def dump(experiment: Experiment) -> str:
    """The experiment as YAML: everything resolved, the same bytes for the same experiment."""
    return documents.dump(experiment.to_dict())
