"""Serve random workloads under every policy; compare the tokens with a run that never overflows.

Faults damage the copies.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any
from unittest import mock

from kvscope.engine.devices.platform import platform_of
from kvscope.engine.marks import Marks
from kvscope.engine.port import Engine
from kvscope.engine.recording import Recording
from kvscope.engine.vllm.build import run_engine
from kvscope.engine.vllm.connectors.swap import SwapConnector
from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand
from kvscope.run.serving import serve
from kvscope.workload.requests import build

from .cases import AMPLE, BASE, BATCHING, FAULTS, MODELS, OVERFLOW, that_run_here
from .conftest import ROOT, Silent


def no_copy(self: Any, *args: Any, **kwargs: Any) -> None:
    """Forget to copy."""


def postpone(self: Any, orders: Any) -> None:
    """Put the copy out off until the forward pass is over."""
    self.postponed = orders


def copy_late(self: Any) -> None:
    """Copy out the blocks whose copies were delayed."""
    for order in self.postponed.out:
        self._carry_out(order, "out", self.copies.out)


def of_swap() -> dict[str, dict[str, Callable[..., None]]]:
    """Faulty methods of the connector that swaps."""
    return {
        "no copy out": {"handle_preemptions": no_copy},
        "no copy in": {"start_load_kv": no_copy},
        "late copy out": {"handle_preemptions": postpone, "wait_for_save": copy_late},
    }


def of_activations(connector: Any) -> dict[str, dict[str, Callable[..., None]]]:
    """Faulty methods of the connector of kvscope-offload."""
    save, rebuild = connector._save, connector.rebuild

    def save_late(self: Any, rows: Any, to: Any) -> None:
        """Save each token where its predecessor belongs."""
        save(self, rows[1:], to[:-1])

    def rebuild_most(self: Any, *what: Any) -> None:
        """Forget the last layer."""
        with mock.patch.object(self, "attentions", self.attentions[:-1]):
            rebuild(self, *what)

    return {
        "nothing is saved": {"_save": no_copy},
        "tokens are saved a place late": {"_save": save_late},
        "nothing is rebuilt": {"rebuild": no_copy},
        "the last layer is not rebuilt": {"rebuild": rebuild_most},
    }


def faults_in(fault: str) -> tuple[Any, dict[str, Callable[..., None]]]:
    """The class that is damaged, and its faulty methods by name."""
    if fault in (known := of_swap()):
        return SwapConnector, known[fault]
    from kvscope_offload.overflow.connector import ActivationConnector

    return ActivationConnector, of_activations(ActivationConnector)[fault]


def experiment(*overrides: str) -> Experiment:
    return expand(None, [*BASE, *overrides], ROOT / "config").experiments[0].experiment


def random_workload(like: Experiment, seed: int) -> list[Any]:
    """Requests whose number, lengths and token ids are drawn from `seed`."""
    draw = random.Random(seed)
    longest = draw.randint(60, 150)
    settings = {
        "num_requests": draw.randint(4, 9),
        "min_tokens": draw.randint(20, longest),
        "max_tokens": longest,
        "prompt_to_output_ratio": draw.choice([0.5, 1.0, 2.0, 5.0]),
    }
    workload = like.workload.model_copy(update=settings)
    return build(like.model_copy(update={"workload": workload, "seed": seed}))


@contextmanager
def faulty(fault: str | None) -> Iterator[None]:
    cls, methods = faults_in(fault) if fault else (None, {})
    patches = [mock.patch.object(cls, name, method) for name, method in methods.items()]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def tokens(engine: Engine, like: Experiment, seed: int) -> tuple[dict[str, list[int]], Recording]:
    recording = Recording()
    engine.begin(recording, Marks())
    return serve(engine, random_workload(like, seed), Silent()).outputs, recording


def compared(model: str, seeds: range) -> Iterator[dict[str, Any]]:
    """For each case, over all seeds: the requests whose tokens differ from those of an engine
    that never overflows, the numbers of preemptions and swaps, and the blocks left in use."""
    sizes = MODELS.get(model, (f"model={model}",))
    ample = experiment(*sizes, *AMPLE)
    with run_engine(platform_of(ample)) as engine:
        expected = {seed: tokens(engine, ample, seed)[0] for seed in seeds}
    cases: list[tuple[str, str, str | None]]
    cases = [(b, o, None) for b, o in product(BATCHING, that_run_here(OVERFLOW))]
    cases += [
        ("mixed", overflow, fault)
        for fault, overflow in FAULTS.items()
        if overflow in that_run_here(OVERFLOW)
    ]
    # Few enough that a request is rebuilt in several parts.
    parts = mock.patch("kvscope.tables.rebuilds.REBUILD_TOKENS", 64)
    for batching, overflow, fault in cases:
        scarce = experiment(*sizes, *BATCHING[batching], *OVERFLOW[overflow])
        differing, preempted, kept, left = [], [], [], []
        with parts, faulty(fault), run_engine(platform_of(scarce)) as engine:
            for seed in seeds:
                given, recording = tokens(engine, scarce, seed)
                differing.append([i for i in given if given[i] != expected[seed][i]])
                preempted.append([p.request_id for p in recording.preemptions])
                kept.append(sum(p.action.keeps for p in recording.preemptions))
                left.append(engine.kv_blocks_used + engine.host_blocks_used)
        yield {
            "case": fault or f"{batching} {overflow}",
            "differing": differing,
            "preempted": preempted,
            "kept": kept,
            "left": left,
        }
