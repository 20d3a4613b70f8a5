"""The oracle of victims: each is the running request that `overflow.victim` selects."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, cast

import numpy as np
import pandas as pd

from kvscope.judge.oracles.run_tables import RunTables, Values, bad_rows, counts_of, groups
from kvscope.judge.planned import experiment_of
from kvscope.plan import registry
from kvscope.plan.policy import CHEAPEST, LAST, RANDOM, Overflow, drawn
from kvscope.plan.preemption_cost import preemption_cost
from kvscope.tables import BATCH
from kvscope.tables.oracle import Violations
from kvscope.tables.run_data import of_repeat


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
    """Each victim is the running request that `overflow.victim` selects.

    The choice is recomputed from the tokens that each request had computed when the pass was
    scheduled. Of equal requests, the one that arrived last is the victim; with `last`, any that
    was admitted in the same pass.
    """
    whom = str(chosen_by(run))
    rank, wrong = _rank(run, whom), []
    for number in run.repeats:
        lost = of_repeat(run.victims, number).sort_values("step", kind="stable")
        passes, step, ranks = _Passes(run, number, lost), None, dict[str, float]()
        for place, pass_, victim in zip(lost.index, lost["step"], lost["request_id"], strict=True):
            if pass_ != step:
                step, ranks = pass_, _ranks(passes.running(pass_), rank, whom)
            if victim not in ranks or ranks[victim] < max(ranks.values()):
                wrong.append(place)
            ranks.pop(victim, None)
    rows = run.victims.loc[wrong]
    words = f"was preempted, but is not the victim by overflow.victim={whom}"
    return bad_rows(rows, np.ones(len(rows), bool), lambda _: words)


def _ranks(running: Running, rank: Rank, whom: str) -> dict[str, float]:
    """Ranks of running requests; ties are broken by arrival, except with `last`."""
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
    """The passes of one repeat, each with the requests that run while it is scheduled.

    What a row of `batch` has computed stays in the cache from its pass until the request's next
    row, or until the request is preempted, finished or aborted.
    """

    def __init__(self, run: RunTables, number: int, lost: pd.DataFrame) -> None:
        rows, requests = of_repeat(run.batch, number), run.repeats[number].requests
        names, steps = rows["request_id"].to_numpy(object), rows["step"].to_numpy()
        sampled = rows["sampled_tokens"].to_numpy()
        prompts = dict(zip(requests["request_id"], requests["prompt_tokens"], strict=True))
        order = np.argsort(requests["arrival_s"], kind="stable")
        turns = {name: turn for turn, name in enumerate(requests["request_id"].iloc[order])}
        lost_at = defaultdict(list)
        for name, step in zip(lost["request_id"], lost["step"], strict=True):
            lost_at[name].append(step)
        length, arrived, admitted, until = np.zeros((4, len(rows)))
        for span in groups(names):
            name, computed = names[span.start], steps[span]
            events = np.array([*lost_at[name], math.inf])
            earlier = np.searchsorted(events, computed, side="right")
            begun = np.diff(earlier, prepend=-1) > 0
            following = np.append(computed[1:], math.inf)
            last = run.ended[number].get(name, math.inf) - 1
            length[span] = prompts.get(name, math.nan) + sampled[span].cumsum()
            arrived[span] = turns.get(name, math.nan)
            admitted[span] = np.maximum.accumulate(np.where(begun, computed, 0))
            until[span] = np.minimum.reduce([following, events[earlier], np.full(len(begun), last)])
        self._first, self._until = steps, until
        self._rows = Running(names, _tokens_after(rows), length, arrived, admitted)

    def running(self, step: int) -> Running:
        """Requests with an earlier pass that had neither ended nor been preempted since."""
        chosen = np.flatnonzero((self._first < step) & (self._until >= step))
        return Running(*(values[chosen] for values in self._rows))


def _tokens_after(rows: pd.DataFrame) -> Values:
    """The tokens of each row's request in the cache after its pass."""
    tokens = (rows["context_tokens"] + rows["scheduled_tokens"]).to_numpy()
    most = np.maximum(rows["sampled_tokens"].to_numpy() - 1, 0)
    for tentative, accepted_name in BATCH.tentative:
        accepted, computed = (
            counts_of(rows[name]).to_numpy() for name in (accepted_name, tentative)
        )
        tokens = tokens + np.minimum(accepted, most) - computed
    return tokens
