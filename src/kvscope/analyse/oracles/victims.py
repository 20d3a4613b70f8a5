"""The oracle of victims: each is the one of the running requests that `overflow.victim` says."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from kvscope.analyse.oracles.run_tables import OF_REQUEST, RunTables, bad_rows
from kvscope.analyse.planned import experiment_of
from kvscope.oracle import Violations
from kvscope.plan import registry
from kvscope.plan.policy import CHEAPEST, LAST, RANDOM, Overflow, drawn
from kvscope.plan.preemption_cost import preemption_cost

Values = npt.NDArray[Any]


class Running(NamedTuple):
    """The running requests while a pass is scheduled: arrays with a value for each.

    `tokens` are in the cache, `length` are those of prompt and output so far; `arrived` and
    `admitted` are the order of arrival, and the pass since which they run.
    """

    request_id: Values
    tokens: Values
    length: Values
    arrived: Values
    admitted: Values


Rank = Callable[[Running], Values]

RANKS: Mapping[str, Rank] = {
    LAST: lambda running: running.admitted,
    "first": lambda running: -running.arrived,
    "longest": lambda running: running.length,
    "shortest": lambda running: -running.length,
    "least_computed": lambda running: -running.tokens,
    "most_computed": lambda running: running.tokens,
}
"""The rank of running requests by `overflow.victim`: the highest is preempted."""


def policy_of(run: RunTables) -> type[Overflow]:
    """The class of the run's overflow policy."""
    return cast(type[Overflow], registry.load("overflow", run.section("overflow")["name"]))


def chosen_by(run: RunTables) -> str | None:
    """The run's `overflow.victim`; None if its policy ranks requests by a rule of its own."""
    settings = run.section("overflow")
    if "name" not in settings or policy_of(run).ranks_itself():
        return None
    return str(settings.get("victim", LAST))


def is_ranked(run: RunTables) -> bool:
    """Whether vLLM preempts by rank: then it may take a victim out of the pass being scheduled."""
    return chosen_by(run) != LAST


def victim_wrong(run: RunTables) -> Violations:
    """Each victim is the one of the running requests that `overflow.victim` says.

    It is judged by what each had computed when the pass was scheduled. Of equal ones it is the one
    that arrived last; with `last`, any that was admitted in the same pass.
    """
    whom = str(chosen_by(run))
    rank, wrong = _rank(run, whom), []
    for repeat in run.records.repeats():
        known = _Passes(run, repeat.repeat)
        lost = run.victims[run.victims["repeat"] == repeat.repeat]
        for step, of_pass in lost.groupby("step"):
            ranks = _ranks(known.running(cast(int, step)), rank, whom)
            for place, victim in of_pass["request_id"].items():
                if victim not in ranks or ranks[victim] < max(ranks.values()):
                    wrong.append(place)
                ranks.pop(victim, None)
    rows = run.victims.loc[wrong]
    words = f"was preempted, but is not the victim by overflow.victim={whom}"
    return bad_rows(rows, np.ones(len(rows), bool), lambda _: words)


def _ranks(running: Running, rank: Rank, whom: str) -> dict[str, float]:
    """The rank of each running request; of equal ones the last to arrive, but for `last`."""
    ranks = rank(running)
    if whom != LAST:
        ranks = np.lexsort((running.arrived, ranks)).argsort()
    return dict(zip(running.request_id, ranks.tolist(), strict=True))


def _rank(run: RunTables, whom: str) -> Rank:
    if whom == CHEAPEST:
        experiment = experiment_of(run.records)
        seconds = preemption_cost(experiment.overflow, experiment)
        return lambda running: np.array([-seconds(tokens) for tokens in running.tokens.tolist()])
    if whom == RANDOM:
        return partial(_drawn, experiment_of(run.records).seed)
    return RANKS[whom]


def _drawn(seed: int, running: Running) -> Values:
    rows = zip(running.request_id, running.tokens.tolist(), strict=True)
    return np.array([drawn(seed, *row) for row in rows])


class _Passes:
    """The passes of one repeat, each with the requests that run while it is scheduled."""

    def __init__(self, run: RunTables, repeat: int | None) -> None:
        of_repeat = (run.batch["repeat"] == repeat).to_numpy()
        rows, stays = run.batch[of_repeat], run.stays[of_repeat]
        begins = (rows["previous_step"] < 0) | (rows["preempted_step"] > rows["previous_step"])
        admitted = rows["step"].where(begins).groupby(rows["request_id"]).ffill()
        own = run.records.requests[run.records.requests["repeat"] == repeat].set_index("request_id")
        prompt = own["prompt_tokens"].reindex(rows["request_id"]).to_numpy()
        arrived = own["arrival_s"].rank(method="first").reindex(rows["request_id"]).to_numpy()
        ended = run.ended["at"].reindex(pd.MultiIndex.from_frame(rows[OF_REQUEST])).to_numpy()
        first, until = stays["step"].to_numpy(float), stays["until"].to_numpy(float)
        self._first, self._until = first, np.fmin(until, ended - 1)
        self._rows = Running(
            rows["request_id"].to_numpy(object),
            rows["end_tokens"].to_numpy(),
            prompt + (rows["sampled_before"] + rows["sampled_tokens"]).to_numpy(),
            arrived,
            admitted.to_numpy(),
        )

    def running(self, step: int) -> Running:
        """Those with an earlier pass that had neither ended nor been preempted since."""
        there = (self._first < step) & ~(self._until < step)
        return Running(*(values[there] for values in self._rows))
