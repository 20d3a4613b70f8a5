"""Manifests of plans without a configuration: ids, and what their runs need."""

from collections.abc import Iterable, Mapping
from typing import Any

NEEDS = {
    **{"threads": 1, "memory_mib": 100, "parked_mib": 10, "gpus": 0, "exclusive": 0},
    **{"batch": 0, "together": 0, "walltime_s": 30, "share_s": 6},
}


def entry(id_: str, **needs: int) -> dict[str, Any]:
    """An experiment of a manifest: a measured one on the CPU, but for these needs."""
    resources = NEEDS | needs
    words = {"label": f"label {id_}", "traits": {}, "grid": "", "varied": {}}
    return {"id": id_, **words, "resources": resources}


def manifest_of(entries: Iterable[Mapping[str, Any]], study: str = "s") -> dict[str, Any]:
    """A study's manifest with these experiments."""
    return {
        **{"study": study, "base": study, "title": "", "description": "", "files": []},
        **{"compare": None, "varied_keys": [], "figures": [], "overrides": [], "pairs": {}},
        **{"config_sha256": "", "experiments": list(entries)},
    }
