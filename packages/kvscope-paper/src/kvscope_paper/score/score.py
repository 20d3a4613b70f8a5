"""`kvscope score`: another simulator's steps beside those of a kvscope run of the same workload."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvscope.api.errors import BadInput
from kvscope.api.runs import RunView, read_records
from kvscope.api.words import time_sources
from kvscope_paper.score.trace import TracedStep, read_trace

# What is compared, in the order in which a first difference is named.
COMPARED = (
    *("requests", "tokens", "preempted", "victims", "recomputed_tokens"),
    *("hit_tokens", "loaded_tokens", "kv_blocks_used"),
)


@dataclass(frozen=True)
class Score:
    """Agreement of a trace with a run; counts are of the trace and of the run."""

    steps: tuple[int, int]
    steps_equal: int
    first_divergence: int | None  # the step
    divergence: str  # what differs there, in words
    compared: tuple[str, ...]
    preemptions: tuple[int | None, int]
    recomputed_tokens: tuple[int | None, int]
    victims_equal: int | None  # preemptions with the run's victim, in order
    steps_s: tuple[float | None, float]  # the sum of their durations

    @property
    def to_json(self) -> dict[str, Any]:
        """JSON object that `--json` prints."""
        return asdict(self)

    @property
    def lines(self) -> Iterator[str]:
        """The score in words."""
        theirs, ours = self.steps
        yield f"steps: {theirs:,} in the trace, {ours:,} in the run, {self.steps_equal:,} equal"
        yield f"compared: {', '.join(self.compared)}"
        if self.first_divergence is None:
            yield "no step differs"
        else:
            yield f"first divergence: step {self.first_divergence}: {self.divergence}"
        yield _pair("preemptions", *self.preemptions)
        yield _pair("recomputed tokens", *self.recomputed_tokens)
        if self.victims_equal is not None:
            yield f"victims: {self.victims_equal:,} of {self.preemptions[1]:,} as in the run"
        their_s, our_s = self.steps_s
        if their_s is not None:
            off = f"{their_s / our_s - 1:+.1%}"
            yield f"sum of steps: {their_s:.2f} s in the trace, {our_s:.2f} s in the run ({off})"


def _pair(name: str, theirs: int | None, ours: int) -> str:
    told = "unknown" if theirs is None else f"{theirs:,}"
    return f"{name}: {told} in the trace, {ours:,} in the run"


def score(trace: Path, run: Path, repeat: int = 0) -> Score:
    """Compare a trace with a repeat of a run, step by step.

    BadInput if the trace cannot be used, or the run has no such repeat or was rehearsed.
    """
    records = read_records(run)
    if records.time_source == time_sources.REHEARSED:
        raise time_sources.rehearsal_refused(run, "score")
    theirs, ours = read_trace(trace), list(steps_of(records, repeat, run))
    compared = tuple(name for name in COMPARED if getattr(theirs[0], name) is not None)
    differing = [
        number
        for number in range(max(len(theirs), len(ours)))
        if not _same(theirs, ours, number, compared)
    ]
    first = differing[0] if differing else None
    lost = [name for step in ours for name in step.victims or ()]
    told = None
    if "victims" in compared:
        claimed = [name for step in theirs for name in step.victims or ()]
        told = sum(a == b for a, b in zip(claimed, lost, strict=False))
    return Score(
        steps=(len(theirs), len(ours)),
        steps_equal=max(len(theirs), len(ours)) - len(differing),
        first_divergence=first,
        divergence="" if first is None else _difference(theirs, ours, first, compared),
        compared=compared,
        preemptions=(_total(theirs, "preempted"), _total(ours, "preempted") or 0),
        recomputed_tokens=(
            _total(theirs, "recomputed_tokens"),
            _total(ours, "recomputed_tokens") or 0,
        ),
        victims_equal=told,
        steps_s=(_total(theirs, "duration_s"), _total(ours, "duration_s") or 0.0),
    )


def steps_of(records: RunView, repeat: int, run: Path) -> Iterator[TracedStep]:
    """The steps of one repeat of a run, as a trace has them."""
    steps = records.steps[records.steps["repeat"] == repeat].sort_values("step")
    if steps.empty:
        raise BadInput(f"{run}: has no repeat {repeat}")
    events = records.preemptions
    lost = events[(events["event"] == "preempt") & (events["repeat"] == repeat)]
    victims = lost.groupby("step")["request_id"].agg(tuple).to_dict()
    rows = records.batch[records.batch["repeat"] == repeat]
    passes = rows.fillna({"hit_tokens": 0, "loaded_tokens": 0}).groupby("step")
    tokens = passes[["hit_tokens", "loaded_tokens"]].sum().astype(int)
    for row in steps.to_dict("records"):
        yield TracedStep(
            step=int(row["step"]),
            requests=int(row["requests"]),
            tokens=int(row["scheduled_tokens"]),
            preempted=int(row["preempted_requests"]),
            recomputed_tokens=int(row["recomputed_tokens"]),
            kv_blocks_used=int(row["kv_blocks_used"]),
            duration_s=float(row["duration_s"]),
            victims=victims.get(row["step"], ()),
            **tokens.loc[row["step"]].to_dict(),
        )


def _same(
    theirs: list[TracedStep], ours: list[TracedStep], number: int, compared: tuple[str, ...]
) -> bool:
    if number >= min(len(theirs), len(ours)):
        return False
    a, b = theirs[number], ours[number]
    return all(getattr(a, name) == getattr(b, name) for name in compared)


def _difference(
    theirs: list[TracedStep], ours: list[TracedStep], number: int, compared: tuple[str, ...]
) -> str:
    if number >= len(theirs):
        return "the trace ends, the run goes on"
    if number >= len(ours):
        return "the run ends, the trace goes on"
    a, b = theirs[number], ours[number]
    name = next(name for name in compared if getattr(a, name) != getattr(b, name))
    return f"{name} is {getattr(a, name)!r}, in the run {getattr(b, name)!r}"


def _total(steps: list[TracedStep], name: str) -> Any:
    """The sum over all steps; None if the trace does not have it."""
    values = [getattr(step, name) for step in steps]
    return None if any(value is None for value in values) else sum(values)
