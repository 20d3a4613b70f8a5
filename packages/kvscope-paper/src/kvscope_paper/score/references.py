"""`kvscope references`: runs of vLLM's scheduler that simulators can be held against.

Each reference is a trace in the format of `kvscope score`, made of a modeled run of the study
`score`; the requests of a workload are written once, in the format of Mooncake's traces.
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TextIO

from kvscope.api.composition import expand
from kvscope.api.documents import markdown
from kvscope.api.errors import KvscopeError
from kvscope.api.experiments import Experiment
from kvscope.api.experiments import requests as workload
from kvscope.api.files import files
from kvscope.api.running import batch
from kvscope.api.runs import read_records
from kvscope_paper.score.score import steps_of
from kvscope_paper.score.trace import COLUMNS, SEPARATOR, TracedStep

STUDY = "score"
SUMS = "SHA256SUMS"


@dataclass(frozen=True)
class Reference:
    """A reference trace: its name, its file, and the blocks of the KV cache that it is of."""

    name: str
    path: Path
    blocks: int
    steps: tuple[TracedStep, ...]

    def total(self, column: str) -> int:
        """The sum of a column over all steps."""
        return sum(getattr(step, column) or 0 for step in self.steps)


def write_references(directory: Path, config_dir: Path, log: TextIO) -> list[Reference]:
    """Run the study `score` and write its traces, requests and SHA-256 sums.

    Runs are in `directory/runs`; finished ones are not made again. KvscopeError if one fails.
    """
    planned = [entry.experiment for entry in expand(STUDY, [], config_dir).experiments]
    experiments = {name_of(experiment): experiment for experiment in planned}
    runs = {name: directory / "runs" / name for name in experiments}
    jobs = [batch.Job(experiment, runs[name]) for name, experiment in experiments.items()]
    if batch.run_alone(jobs, log):
        raise KvscopeError(f"not all reference runs were made; {directory / 'runs'} has logs")
    references = [
        _write_reference(name, experiment, runs[name], directory)
        for name, experiment in experiments.items()
    ]
    written = [reference.path for reference in references]
    for experiment in experiments.values():
        path = directory / f"{experiment.workload.name}.requests.jsonl"
        if path not in written:
            rows = request_rows(workload.build(experiment), experiment.cache.block_size)
            path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
            written.append(path)
    sums = (f"{files.sha256_of(path)}  {path.name}\n" for path in sorted(written))
    (directory / SUMS).write_text("".join(sums), encoding="utf-8")
    return references


def name_of(experiment: Experiment) -> str:
    """'mooncake-native-2x': workload, overflow policy, and how many times oversubscribed."""
    ratio = experiment.cache.oversubscription
    return f"{experiment.workload.name}-{experiment.overflow.name}-{ratio:g}x"


def _write_reference(name: str, experiment: Experiment, run: Path, directory: Path) -> Reference:
    steps = tuple(steps_of(read_records(run), 0, run))
    path = directory / f"{name}.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([_text(getattr(step, column)) for column in COLUMNS] for step in steps)
    return Reference(name, path, experiment.cache_blocks, steps)


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return SEPARATOR.join(value)
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def request_rows(requests: list[workload.Request], block_size: int) -> Iterator[str]:
    """The requests as lines of Mooncake's format, with ids of blocks of the cache's size.

    Equal ids are equal tokens from the prompt's start to the block's end. The last block may be
    partial.
    """
    ids: dict[bytes, int] = {}
    for request in requests:
        digest, hashes, prompt = b"", [], request.prompt_token_ids
        for start in range(0, len(prompt), block_size):
            digest = sha256(digest + prompt[start : start + block_size].tobytes()).digest()
            hashes.append(ids.setdefault(digest, len(ids)))
        row = {
            "timestamp": round((request.arrival_s or 0) * 1000),
            "input_length": len(prompt),
            "output_length": request.output_tokens,
            "hash_ids": hashes,
        }
        yield json.dumps(row, separators=(",", ":"))


def table(references: list[Reference]) -> str:
    """The references as a table of Markdown, with the first digits of their SHA-256."""
    columns = ("preempted", "recomputed_tokens", "hit_tokens", "loaded_tokens")
    rows = [
        (
            f"`{reference.name}`",
            f"{reference.blocks:,}",
            f"{len(reference.steps):,}",
            *(f"{reference.total(column):,}" for column in columns),
            f"`{files.sha256_of(reference.path)[:16]}`",
        )
        for reference in references
    ]
    names = ("preemptions", "tokens recomputed", "tokens hit", "tokens loaded", "SHA-256")
    return markdown(("reference", "blocks", "steps", *names), rows)
