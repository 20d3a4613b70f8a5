"""The members of a study's packs: batches of experiments that have no result yet."""

import hashlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvscope.api.plan import batches
from kvscope.api.plan import manifest as plans
from kvscope.api.progress import is_finished
from submitit_packs.model import Member

# What the stages after the run are expected to take, and may take, as in workflow/rules; the second
# has the five minutes that a run may take beyond twice what is expected.
STAGES_EXPECTED_S, STAGES_S = 60, 1500
KVSCOPE = (sys.executable, "-m", "kvscope.cli")


def unfinished(manifest: Mapping[str, Any], results: Path) -> set[str]:
    """The experiments of a study's manifest that are not measured, collected and analysed."""
    return {e["id"] for e in manifest["experiments"] if not is_finished(e["id"], results)}


def members(manifest: Mapping[str, Any], results: Path) -> list[Member]:
    """Members that take the unfinished experiments of a study to their metrics, one a batch.

    A batch is the same however many of its experiments are finished, which it keeps.
    """
    todo = unfinished(manifest, results)
    parts = batches.parts(manifest, sys.maxsize, None)
    return [
        batch(manifest, kind, part, count, results)
        for kind, count in parts.items()
        for part in range(count)
        if todo & set(batches.batch(manifest, kind, part, count))
    ]


def batch(manifest: Mapping[str, Any], kind: str, part: int, parts: int, results: Path) -> Member:
    """A batch of experiments, which one command takes from settings to metrics."""
    ids = batches.batch(manifest, kind, part, parts)
    needs = batches.needs(manifest, kind, part, parts)
    expected_s = needs["walltime_s"] + STAGES_EXPECTED_S
    same = hashlib.sha256("\0".join(ids).encode()).hexdigest()[:10]
    return Member(
        key=ids[0] if len(ids) == 1 else f"{manifest['study']}-{kind}-{part}-of-{parts}-{same}",
        name=batches.name(manifest["study"], kind, part, parts),
        command=command(manifest, ids, results),
        cwd=str(Path.cwd()),
        expected_s=float(expected_s),
        timeout_s=2.0 * needs["walltime_s"] + STAGES_S,
        gpus=needs["gpus"],
        exclusive=bool(needs["exclusive"]),
    )


def command(manifest: Mapping[str, Any], ids: Sequence[str], results: Path) -> str:
    """The shell command of a batch: run, collect, analyse."""
    asked = manifest["compare"]
    words = ["run", "--multirun", "--tables", "--results", str(results)]
    words += ["--compare", asked["key"]] if asked else []
    files = [str(plans.experiment_path(id_, results)) for id_ in ids]
    return shlex.join([*KVSCOPE, *words, *files])
