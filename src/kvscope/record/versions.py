"""Which versions of vLLM can be recorded."""

SUPPORTED = ("0.32",)
"""Releases whose scheduler the recorder knows, and that tests/engine/test_record.py records."""


def problem(version: str) -> str | None:
    """Why a version of vLLM cannot be recorded, in one sentence; None if it can."""
    if ".".join(version.split(".")[:2]) in SUPPORTED:
        return None
    return f"vLLM {version} cannot be recorded: kvscope records vLLM {', '.join(SUPPORTED)}"
