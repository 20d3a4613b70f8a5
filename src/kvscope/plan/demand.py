"""The blocks that requests need, and the cache size for `cache.oversubscription`."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from kvscope.base.errors import BadInput
from kvscope.plan.models import Model
from kvscope.plan.wording import format_value
from kvscope.tables.kv_group import KvGroup
from kvscope.tables.kv_use import most_blocks

if TYPE_CHECKING:
    from kvscope.plan.workload import Workload

KEY = "cache.oversubscription"


def size_cache(
    config: dict[str, Any], kind: "type[Workload]", origin: Callable[[str], str]
) -> dict[str, Any]:
    """The configuration, with `cache.blocks` computed if the cache is sized by oversubscription.

    `cache.blocks` is the blocks of all requests over `cache.oversubscription`, at least one.
    BadInput if the cache has another size as well, or if a file of the workload cannot be used.
    """
    cache = config.get("cache")
    ratio = cache.get("oversubscription") if isinstance(cache, dict) else None
    if not isinstance(cache, dict) or not isinstance(ratio, int | float) or ratio <= 0:
        return config
    for other in ("blocks", "gib"):
        if cache.get(other) is not None:
            raise BadInput(
                f"{KEY} ({format_value(ratio)}) ({origin(KEY)}) and cache.{other} "
                f"({format_value(cache[other])}) ({origin(f'cache.{other}')}) both size the cache; "
                "set one of them"
            )
    blocks = max(1, int(_demand(config, kind) / ratio))
    return config | {"cache": cache | {"blocks": blocks}}


def _demand(config: Mapping[str, Any], kind: "type[Workload]") -> int:
    """Blocks of all requests; 1 where the settings are not valid, which parsing them says."""
    size, seed = config["cache"].get("block_size"), config.get("seed")
    if not isinstance(size, int) or size < 1 or not isinstance(seed, int):
        return 1
    try:
        workload = kind.model_validate(config["workload"])
        model = Model.model_validate(config["model"])
    except ValidationError:
        return 1
    return demand_blocks(workload, seed, model.kv_groups(size, model.number_bytes))


@lru_cache(maxsize=1024)
def demand_blocks(workload: "Workload", seed: int, groups: tuple[KvGroup, ...]) -> int:
    """Blocks of all requests that can be served at once, of each the most that it holds.

    BadInput if a file of the workload cannot be used.
    """
    tokens = [lengths.total for lengths in workload.longest_at_once(seed)]
    return int(most_blocks(groups, np.array(tokens, np.int64)).sum())
