"""Told columns of a repeat: its decisions and times.

Nothing here is a cell that the replay works out. Jobs, copies beside the passes, are decisions; of
other copies their seconds are read.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from kvscope.base.arraytypes import Int64s
from kvscope.judge.twin.columns import JOBS as OF_JOBS
from kvscope.judge.twin.columns import Columns, Tables
from kvscope.tables import BATCH
from kvscope.tables.copies import IN
from kvscope.tables.evidence import JOBS, TOKEN_IDS

TOLERANCE_S = 1e-6
"""Tolerance of comparisons between times that were computed in two ways."""
Content = tuple[str, int, int]
"""Content of a cached block: its request, its position there, and the pass that computed it."""


class Known(NamedTuple):
    """A request of the workload; `due_s` is its arrival there, `arrival_s` when it came."""

    request_id: str
    prompt_tokens: int
    output_tokens: int
    due_s: float | None
    arrival_s: float
    conversation: str | None
    turn: int | None


class Scheduled(NamedTuple):
    """A request in a pass: its computed tokens, the tentative tokens among them, and those it
    keeps.

    `saved_tokens` and `sampled_tokens` count only where a policy or a client decides.
    """

    request_id: str
    tokens: int
    tentative: int
    kept: int
    saved_tokens: int | None
    sampled_tokens: int


class Victim(NamedTuple):
    """A preemption, with the policy's choice, and the tokens that the pass was to compute."""

    request_id: str
    time_s: float
    action: str
    refused: bool
    scheduled_tokens: int
    predicted_s: float | None


class Job(NamedTuple):
    """Blocks that vLLM's offloading loads or stores, from a position in the request on."""

    number: int
    request_id: str
    direction: str
    blocks: int
    first_block: int
    ordered_s: float
    end_s: float
    copy_s: float
    arrived_step: int | None
    awaited_step: int | None


class Prompts:
    """Names of the blocks of requests by their tokens, the same in every repeat."""

    def __init__(self, workload: pd.DataFrame, block_size: int) -> None:
        self._size = block_size
        self._names: dict[str, list[int]] = {}
        self._numbers: dict[tuple[int, bytes], int] = {}
        columns = Columns(workload)
        rows = columns.rows("request_id", "prompt_token_ids", "output_token_ids", "block_ids")
        self._tokens = dict[str, Any]()
        for name, *parts, block_ids in rows:
            self._tokens[name] = parts
            if block_ids is not None:
                self._names[name] = list(block_ids)

    def of(self, request_id: str) -> list[int]:
        """A name for each block of known tokens: equal where all tokens up to its end are."""
        names = self._names.get(request_id)
        if names is None:
            names = self._names[request_id] = self._named(self.tokens_of(request_id))
        return names

    def tokens_of(self, request_id: str) -> Int64s:
        """The token ids of a prompt and of the outputs that must come out, as far as known."""
        parts = self._tokens.get(request_id, ())
        arrays = [np.asarray(part, np.int64) for part in parts if part is not None]
        return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)

    def _named(self, tokens: Int64s) -> list[int]:
        size, name, names = self._size, 0, []
        for end in range(size, len(tokens) + 1, size):
            content = (name, tokens[end - size : end].tobytes())
            name = self._numbers.setdefault(content, len(self._numbers) + 1)
            names.append(name)
        return names


@dataclass
class Told:
    """The decisions and times of one repeat, by pass."""

    starts_s: list[float]
    ends_s: list[float]
    forward_s: list[float]
    load_wait_s: list[float]
    requests: list[Known]
    aborted_s: dict[str, float]
    batch: list[list[Scheduled]]
    victims: dict[int, list[Victim]]
    loads: dict[int, list[Job]]
    stores: dict[int, list[Job]]
    copied_s: dict[tuple[int, str, str], float]
    found: dict[tuple[int, str], list[Content]]
    hit: dict[tuple[int, str], int]
    loaded: dict[tuple[int, str], int]
    load_costs_s: dict[str, list[tuple[int, float]]] = field(default_factory=dict)

    @cached_property
    def aborted_before(self) -> dict[int, list[str]]:
        """The requests that were aborted between a pass and the previous pass, in order."""
        by_step: dict[int, list[str]] = defaultdict(list)
        for name, time_s in sorted(self.aborted_s.items(), key=lambda one: one[1]):
            by_step[bisect_left(self.starts_s, time_s - TOLERANCE_S)].append(name)
        return by_step

    @cached_property
    def arrived(self) -> list[tuple[int, int]]:
        """The requests that have arrived by the end of the previous pass, and by a pass's start."""
        arrivals = sorted(request.arrival_s for request in self.requests)
        before = [0.0, *self.ends_s[:-1]]
        return [
            (bisect_right(arrivals, end_s), bisect_right(arrivals, start_s))
            for end_s, start_s in zip(before, self.starts_s, strict=True)
        ]

    @cached_property
    def last_row(self) -> dict[str, int]:
        """The last pass of each request."""
        return {row.request_id: step for step, rows in enumerate(self.batch) for row in rows}

    def loaded_s(self, request_id: str, since: int, until: int) -> float:
        """Seconds of what was loaded for a request by jobs of these passes."""
        costs = self.load_costs_s.get(request_id, ())
        return sum(seconds for step, seconds in costs if since <= step <= until)


def told(run: Tables, known: Collection[str]) -> Told:
    """Decisions and times of one repeat.

    Without token ids they include the hits in the prefix cache, and without the jobs of vLLM's
    offloading the loaded tokens.
    """
    batch = Columns(run["batch"])
    has_tokens, has_jobs = TOKEN_IDS in known, JOBS in known
    steps, transfers = Columns(run["steps"]), Columns(run["transfers"])
    starts_s = steps["start_s"]
    outcomes = _outcomes(Columns(run["requests"]))
    result = Told(
        starts_s=starts_s,
        ends_s=[start + took for start, took in steps.rows("start_s", "duration_s")],
        forward_s=[seconds or 0.0 for seconds in steps["forward_s"]],
        load_wait_s=[seconds or 0.0 for seconds in steps["load_wait_s"]],
        requests=_requests(run, outcomes),
        aborted_s={name: ended_s for name, (_, aborted, ended_s) in outcomes.items() if aborted},
        batch=_batch(batch, len(starts_s)),
        victims=_victims(Columns(run["preemptions"])),
        loads=defaultdict(list),
        stores=defaultdict(list),
        copied_s=_copied_s(transfers),
        found={} if has_tokens else _found(Columns(run["hits"])),
        hit={} if has_tokens else _by_row(batch, "hit_tokens"),
        loaded={} if has_jobs else _by_row(batch, "loaded_tokens"),
    )
    if has_jobs:
        _add_jobs(result, Columns(run[OF_JOBS]))
    return result


Outcomes = dict[str, tuple[float | None, bool, float]]


def _outcomes(requests: Columns) -> Outcomes:
    """When each request came, whether it was aborted, and when it ended."""
    rows = requests.rows("request_id", "arrival_s", "aborted", "finished_s")
    return {name: fields for name, *fields in rows}  # type: ignore[misc]


def _requests(run: Tables, outcomes: Outcomes) -> list[Known]:
    """The requests of the workload; without a workload, those that the repeat served."""
    names = ("request_id", "prompt_tokens", "output_tokens", "arrival_s", "conversation", "turn")
    workload = Columns(run["workload"])
    requests = workload if len(workload) else Columns(run["requests"])
    return [
        Known(name, prompt, output, due_s, outcomes.get(name, (0.0,))[0] or 0.0, *fields)
        for name, prompt, output, due_s, *fields in requests.rows(*names)
    ]


def _batch(batch: Columns, passes: int) -> list[list[Scheduled]]:
    by_step: list[list[Scheduled]] = [[] for _ in range(passes)]
    tentative = batch.total(name for name, _ in BATCH.tentative)
    kept = batch.total(name for _, name in BATCH.tentative)
    columns = (
        *(batch["request_id"], batch["scheduled_tokens"], tentative, kept),
        *(batch["saved_tokens"], batch["sampled_tokens"]),
    )
    # `Scheduled._make` without its call in Python for each of many rows.
    make = partial(tuple.__new__, Scheduled)
    rows = map(make, zip(*columns, strict=True))
    for step, row in zip(batch["step"], rows, strict=True):
        by_step[step].append(row)
    return by_step


def _by_row(batch: Columns, name: str) -> dict[tuple[int, str], int]:
    rows = batch.rows("step", "request_id", name)
    return {(step, request_id): tokens for step, request_id, tokens in rows if tokens}


def _victims(preemptions: Columns) -> dict[int, list[Victim]]:
    by_step = defaultdict(list)
    names = ("request_id", "time_s", "policy", "refused", "scheduled_tokens", "predicted_s")
    for event, step, *row in preemptions.rows("event", "step", *names):
        if event == "preempt":
            victim = Victim(*row)
            by_step[step].append(victim._replace(scheduled_tokens=victim.scheduled_tokens or 0))
    return by_step


def _copied_s(transfers: Columns) -> dict[tuple[int, str, str], float]:
    """Seconds of the copies of preempted requests, with those of rebuilding."""
    seconds: dict[tuple[int, str, str], float] = defaultdict(float)
    names = ("step", "request_id", "direction", "copy_s", "rebuild_s")
    for step, request_id, direction, copy_s, rebuild_s in transfers.rows(*names):
        if request_id is not None:
            seconds[step, request_id, direction] += (copy_s or 0.0) + (rebuild_s or 0.0)
    return seconds


def _add_jobs(told: Told, table: Columns) -> None:
    names = ("request_id", "direction", "blocks", "first_block", "ordered_s", "end_s", "copy_s")
    rows = table.rows("step", "job", *names, "arrived_step", "awaited_step")
    jobs = [(step, Job(*row)) for step, *row in rows]
    for step, job in sorted(jobs, key=lambda one: one[1].number):
        (told.loads if job.direction == IN else told.stores)[step].append(job)
        if job.direction == IN:
            cost = step, job.copy_s or 0.0
            told.load_costs_s.setdefault(job.request_id, []).append(cost)


def _found(hits: Columns) -> dict[tuple[int, str], list[Content]]:
    contents = defaultdict(list)
    rows = hits.rows("step", "request_id", "owner", "block_position", "cached_step")
    for step, request_id, *content in sorted(rows, key=lambda row: row[3]):
        contents[step, request_id].append((content[0], content[1], content[2]))
    return contents
