"""Place of a run and the runs that shared its node, recorded with each result of a pack.

Members of a pack share processor, memory and disks of a node, so that a measurement may depend on
its neighbours. A pack's wrapper says in the environment which member this is; the files of the
other members say where they ran, and when.
"""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from kvscope.base import processes

SECONDS_FOR_NVIDIA_SMI = 30
QUERY = ("uuid", "clocks.sm", "clocks.mem", "temperature.gpu")


def placement(began_s: float, clocks_before: list[dict[str, str]]) -> dict[str, Any]:
    """Pack, node, neighbours since `began_s` (seconds since 1970), and the GPUs' clocks.

    Empty where no pack made the run and there is no NVIDIA GPU.
    """
    facts: dict[str, Any] = {}
    if pack := os.environ.get("PACK_DIRECTORY"):
        member = os.environ.get("PACK_MEMBER", "")
        facts = {
            "pack": Path(pack).name,
            "member": member,
            "node": os.environ.get("PACK_NODE", ""),
            "exclusive": os.environ.get("PACK_EXCLUSIVE") == "1",
            "neighbours": neighbours(Path(pack), member, began_s, time.time()),
        }
    if clocks_before:
        facts["gpus"] = {"before": clocks_before, "after": gpu_clocks()}
    return facts


def neighbours(pack: Path, member: str, start_s: float, end_s: float) -> list[dict[str, Any]]:
    """The other members that ran on this member's node in that time, with their seconds."""
    member_run = _read(pack / f"{member}.run")
    rows = []
    for path in sorted(pack.glob("*.run")):
        other, result = _read(path), _read(path.with_suffix(".rc"))
        if path.stem == member or other.get("host") != member_run.get("host"):
            continue
        ran_until_s = result.get("end_s", end_s) if _same(other, result) else end_s
        overlap_s = min(end_s, ran_until_s) - max(start_s, other.get("start_s", end_s))
        if overlap_s > 0:
            rows.append({"member": path.stem, "gpu": other["gpu"], "overlap_s": overlap_s})
    return rows


def _same(start: dict[str, Any], result: dict[str, Any]) -> bool:
    """Whether a result belongs to this start, and not to an earlier attempt of the pack."""
    return bool(result) and result.get("attempt") == start.get("attempt")


def _read(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}  # a neighbour's file is missing or incomplete: nothing is known of it
    return facts if isinstance(facts, dict) else {}


def gpu_clocks() -> list[dict[str, str]]:
    """UUID, clocks in MHz and temperature in °C of the visible GPUs, as nvidia-smi prints them."""
    program = shutil.which("nvidia-smi")
    if not program:
        return []
    command = [program, f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        command.append(f"--id={visible}")
    try:
        done = processes.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS_FOR_NVIDIA_SMI,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    rows = ([field.strip() for field in line.split(",")] for line in lines)
    return [dict(zip(QUERY, row, strict=True)) for row in rows if len(row) == len(QUERY)]
