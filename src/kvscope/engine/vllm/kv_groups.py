"""The KV groups of an engine, as vLLM has made them."""

from collections.abc import Sequence
from itertools import zip_longest
from math import prod

from vllm.v1.kv_cache_interface import (
    KVCacheConfig,
    KVCacheSpec,
    MambaSpec,
    UniformTypeKVCacheSpecs,
)

from kvscope.base.errors import BadInput
from kvscope.engine.vllm.versions import described_as_now
from kvscope.tables.kv_group import KvGroup
from kvscope.tables.kv_kinds import kind_of
from kvscope.tables.kv_plan import unless_movable, unless_one_block_table

NULL = 0
"""vLLM's null block, which no request holds."""


def groups_of(cache: KVCacheConfig) -> tuple[KvGroup, ...]:
    """The groups whose blocks are on the device; empty for a model without a KV cache."""
    cache = described_as_now(cache)
    groups = [group for group in cache.kv_cache_groups if not group.host_resident]
    return tuple(_group(group_.kv_cache_spec, len(group_.layer_names), cache) for group_ in groups)


def in_order(tables: Sequence[Sequence[int]]) -> list[int | None]:
    """The block ids of a request's groups as one list: the first of each group, the second, …

    None for a block that a window has left behind, where vLLM has its null block.
    """
    return [block or None for row in zip_longest(*tables, fillvalue=NULL) for block in row]


def require_movable(groups: Sequence[KvGroup], setting: str) -> None:
    """Raise BadInput if the groups have blocks that a policy, this setting, cannot move."""
    if wrong := unless_movable(groups, setting):
        raise BadInput(wrong)


def require_one_block_table(groups: Sequence[KvGroup], setting: str) -> None:
    """Raise BadInput unless one group keeps all tokens, which this setting needs."""
    if wrong := unless_one_block_table(groups, setting):
        raise BadInput(wrong)


def _group(spec: KVCacheSpec, layers: int, cache: KVCacheConfig) -> KvGroup:
    """A KV group; a group of layers of different sizes has the sums of all."""
    if isinstance(spec, UniformTypeKVCacheSpecs):
        specs = list(spec.kv_cache_specs.values())
    else:
        specs = [spec] * layers
    first = specs[0]
    kind = type(first).__name__.removesuffix("Spec")
    return KvGroup(
        kind=kind,
        layers=layers,
        block_tokens=first.block_size,
        useful_bytes=sum(map(_content_bytes, specs)),
        padded_bytes=sum(layer.page_size_bytes for layer in specs),
        block_bytes=cache.kv_cache_tensors[0].size // cache.num_blocks,
        window_tokens=getattr(first, kind_of(kind).window, None),
    )


def _content_bytes(spec: KVCacheSpec) -> int:
    """Bytes of a block of one layer without padding."""
    if isinstance(spec, MambaSpec):
        shapes = zip(spec.shapes, spec.dtypes, strict=True)
        return sum(prod(shape) * dtype.itemsize for shape, dtype in shapes)
    return int(getattr(spec, "unpadded_page_size_bytes", spec.page_size_bytes))
