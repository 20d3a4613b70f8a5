"""A campaign: experiments that are measured together, from their settings to their records.

Each has an engine of its own; `plan.together` has which of them stand side by side. All are served
in rounds until the stopping rule ends them, then once more under the profiler. A campaign that was
killed goes on where it ended: the file CAMPAIGN of an attempt says which campaign began it, and
each of its repeats in which round it was measured.
"""

import json
import math
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvscope.base.errors import BadInput, KvscopeError
from kvscope.base.files import make_directory, read_json, write_json
from kvscope.base.machine import system_text
from kvscope.base.processes import exit_on_signals
from kvscope.base.scratch import scratch_directory
from kvscope.engine.devices.platform import platform_of
from kvscope.plan import pairs, together
from kvscope.plan.experiment import Experiment
from kvscope.plan.fields import MAX_REPEATS
from kvscope.plan.repeats import StoppingRule
from kvscope.run import lifecycle
from kvscope.run.attempt import (
    keep_whole_repeats,
    read_session,
    repeats_of,
    require_added_tables,
)
from kvscope.run.block import Block, Show, Told, serve_rounds, widest
from kvscope.run.engines import Zygote
from kvscope.run.environment import measured_environment
from kvscope.run.locks import SUPERVISOR_LOCK, hold_lock
from kvscope.run.placement import gpu_clocks, placement
from kvscope.run.profiled import profile
from kvscope.run.profiler import Profiling, choose_profiler
from kvscope.run.rounds import PROFILED, Group, Member, hold_locks
from kvscope.tables import attempts, runfile

CAMPAIGN = "campaign.json"  # of an attempt
ID_DIGITS = 12
BOOT = Path("/proc/sys/kernel/random/boot_id")
# Variables in which engines may differ, since each fork sets them for itself.
OF_FORK = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")
NANOSECONDS = 1e-9


@dataclass(frozen=True)
class Wanted:
    """An experiment to measure, its run's directory, and whether a finished run is replaced."""

    experiment: Experiment
    directory: Path
    force: bool = False

    @property
    def member(self) -> Member:
        """The experiment, with the directory of its attempt."""
        return Member(self.experiment, self.directory / attempts.ATTEMPT)


@dataclass
class Campaign:
    """Experiments that are measured together, and their outcomes.

    Attributes
    ----------
    wanted
        by id, the experiments whose runs are not finished
    id
        in the records of every repeat
    key
        the comparisons that end the rounds are those in its section; of all sections if None
    failed
        by id, the error for which there is no complete run
    """

    wanted: dict[str, Wanted]
    id: str
    show: Show
    key: str | None = None
    failed: dict[str, KvscopeError] = field(default_factory=dict)
    began_s: float = field(default_factory=time.time)
    clocks: list[dict[str, str]] = field(default_factory=gpu_clocks)

    @property
    def members(self) -> dict[str, Member]:
        """The experiments that have not failed."""
        return {i: item.member for i, item in self.wanted.items() if i not in self.failed}

    def blocks(self, design: together.Design) -> list[Block]:
        """The members of each group of the design by their stopping rules."""
        by_rules: list[tuple[StoppingRule, list[Experiment]]] = []
        for ids in design.groups:
            by_rule: dict[StoppingRule, list[Experiment]] = defaultdict(list)
            for i in ids:
                experiment = self.wanted[i].experiment
                by_rule[experiment.stopping].append(experiment)
            by_rules += by_rule.items()
        return [
            Block(
                tuple(e.id for e in experiments),
                rule,
                tuple(pairs.of_sections(experiments, self.key)),
                range(place, (MAX_REPEATS + 1) * len(by_rules), len(by_rules)),
            )
            for place, (rule, experiments) in enumerate(by_rules)
        ]


def measure(
    wanted: Sequence[Wanted], show: Show, key: str | None = None
) -> dict[str, KvscopeError | None]:
    """Measure experiments together; by id the error if there is no complete run, or None.

    A finished run of the same experiment is kept unless `force` is set or a new measurement is
    requested (`attempts.request_again`). The new measurement is made in attempt/ and replaces the
    old one when it is complete; a failed one never replaces a complete one. A second process for
    the same directory waits, and then finds the run finished. With `key`, the comparisons that end
    the rounds are those in its section.
    """
    failures: dict[str, KvscopeError | None] = {}
    unusable: dict[Path, KvscopeError] = {}
    with ExitStack() as stack:
        stack.enter_context(exit_on_signals())
        # In one order, so that two campaigns do not wait for each other.
        for directory in sorted({item.directory for item in wanted}):
            try:
                make_directory(directory)
                stack.enter_context(hold_lock(directory, SUPERVISOR_LOCK))
            except KvscopeError as error:
                unusable[directory] = error
        failures |= {item.experiment.id: unusable.get(item.directory) for item in wanted}
        usable = [item for item in wanted if item.directory not in unusable]
        pending = [w for w in usable if lifecycle.is_wanted(w.experiment, w.directory, w.force)]
        for lot in _of_one_zygote(pending):
            campaign = Campaign(lot, _campaign_id(lot.values()), show, key)
            run(campaign)
            failures |= campaign.failed
    return failures


def _of_one_zygote(wanted: Sequence[Wanted]) -> list[dict[str, Wanted]]:
    """The experiments whose engines are forks of one process, each lot by id."""
    lots: dict[str, dict[str, Wanted]] = defaultdict(dict)
    for item in wanted:
        environment = measured_environment(item.experiment)
        shared = {k: v for k, v in environment.items() if k not in OF_FORK}
        platform = platform_of(item.experiment)
        of_device = [platform.worker_modules, platform.profiler_options]
        lots[json.dumps([shared, *of_device], sort_keys=True)][item.experiment.id] = item
    return list(lots.values())


def run(campaign: Campaign) -> None:
    """Measure, profile and settle what the campaign wants."""
    for i, item in campaign.wanted.items():
        try:
            _begin(campaign, item)
        except BadInput as error:
            if not _is_ours(campaign, item):
                lifecycle.refuse(item.experiment, item.directory, str(error))
            campaign.failed[i] = error
    members = campaign.members
    if not members:
        return
    first = next(iter(members.values())).experiment
    design = together.design([member.experiment for member in members.values()])
    environment = measured_environment(first)
    modules = platform_of(first).worker_modules
    profilings = {
        i: choose_profiler(member.experiment.profiler.name) for i, member in members.items()
    }
    with hold_locks(members.values()), scratch_directory() as temporary:
        environment["TMPDIR"] = str(temporary)  # where killed engines leave what they have there
        campaign.show("importing vLLM")
        with Zygote(environment, modules, temporary / "zygote.log") as zygote:
            _serve(campaign, design, zygote)
        traced = {i: m for i, m in campaign.members.items() if profilings[i].nsys}
        if nsys := next((profilings[i].nsys for i in traced), None):
            failed = profile(traced, nsys, environment, temporary, campaign.show)
            profilings |= {i: replace(profilings[i], reason=why) for i, why in failed.items()}
    for i, member in members.items():
        facts = _facts(campaign, member, profilings[i])
        lifecycle.settle(campaign.wanted[i].directory, facts)


def _serve(campaign: Campaign, design: together.Design, zygote: Zygote) -> None:
    """Measure the rounds of all blocks, one block after the other."""
    blocks = campaign.blocks(design)
    parked = design.name != together.SITTINGS
    for place, block in enumerate(blocks):
        later = {i for other in blocks[place + 1 :] for i in other.ids}
        members = {i: m for i, m in campaign.members.items() if i in block.ids}
        if all(_begun(m)["ended"] for i, m in members.items() if i not in later):
            continue
        relay = Told(campaign.show)
        with Group(members, zygote, campaign.id, parked, relay) as group:
            serve_rounds(group, block, relay.stage)
            group.finish()
        campaign.failed |= group.failed
        width = widest(group.measured(block.numbers), block.pairs)
        for i in set(block.ids) - later:
            _note(campaign, i, _ended(campaign, design, i, width))
    for i, item in campaign.wanted.items():
        if ended := _begun(item.member).get("ended"):
            campaign.failed |= {i: KvscopeError(ended["reason"])} if ended["reason"] else {}


def _ended(campaign: Campaign, design: together.Design, id_: str, width: float) -> dict[str, Any]:
    """Entries of run.json for an experiment whose rounds have ended."""
    ids = next(group for group in design.groups if id_ in group)
    return {
        "reason": str(campaign.failed[id_]) if id_ in campaign.failed else None,
        "half_width_share": None if math.isnan(width) else width,
        "campaign": {
            "id": campaign.id,
            "design": design.name,
            "members": list(ids),
            "reference": next((i for i in ids if i in design.references), None),
        },
    }


def _facts(campaign: Campaign, member: Member, profiling: Profiling) -> dict[str, Any]:
    """The contents of run.json of a member whose attempt has ended."""
    experiment, directory = member.experiment, member.directory
    session = read_session(directory)
    if not session.get("finished"):
        keep_whole_repeats(directory, session)
    for key in ("finished", "reason", "bad_input", "kernel_events_bytes"):
        session.pop(key, None)
    measured = [entry for entry in repeats_of(session) if not entry.get(PROFILED)]
    ended = _begun(member)["ended"]
    width, reason = ended["half_width_share"], ended["reason"]
    total_s = _total_s(session)
    facts = lifecycle.run_facts(experiment, directory, session, reason, profiling, total_s)
    return facts | {
        "repeats": experiment.stopping.facts(len(measured), math.nan if width is None else width),
        "campaign": ended["campaign"],
        "placement": placement(campaign.began_s, campaign.clocks),
    }


def _total_s(session: Mapping[str, Any]) -> float:
    """Seconds since the first process of the attempt began; 0 if there was none."""
    began_ns = (session.get("clock") or {}).get("run_start_monotonic_ns")
    return 0.0 if began_ns is None else (time.monotonic_ns() - began_ns) * NANOSECONDS


# ------------------------------------------------------------------ attempts


def _begin(campaign: Campaign, one: Wanted) -> None:
    """Begin an experiment's attempt, unless this campaign did; BadInput if it cannot be run.

    An attempt that cannot go on stays as it is.
    """
    if _is_ours(campaign, one):
        try:
            require_added_tables(one.member.directory)
        except BadInput as error:
            then = "once that is mended, run this again: what was measured is kept"
            raise BadInput(f"{error}; {then}") from None
    else:
        lifecycle.begin(one.experiment, one.directory)
        _note(campaign, one.experiment.id, None)


def _is_ours(campaign: Campaign, one: Wanted) -> bool:
    """Whether this campaign has begun the experiment's attempt."""
    return _begun(one.member).get("id") == campaign.id


def _campaign_id(wanted: Iterable[Wanted]) -> str:
    """The id of the campaign that began these attempts since the machine booted, or a new id."""
    begun = [entry for item in wanted if (entry := _begun(item.member))]
    ids = {entry["id"] for entry in begun if entry["boot"] == _boot()}
    return str(ids.pop()) if len(ids) == 1 else uuid.uuid4().hex[:ID_DIGITS]


def _begun(member: Member) -> dict[str, Any]:
    """Campaign of an attempt, from its files; empty if there is none, or it is over.

    An attempt of another experiment, to which the directory belonged before, does not count.
    """
    attempt = member.directory
    path, over = attempt / CAMPAIGN, (attempt / runfile.RUN_FILE).exists()
    try:
        campaign = read_json(path) if path.exists() and not over else {}
    except BadInput:
        return {}
    if not isinstance(campaign, dict) or not {"id", "boot", "ended"} <= campaign.keys():
        return {}
    return campaign if campaign.get("experiment_id") == member.experiment.id else {}


def _note(campaign: Campaign, id_: str, ended: dict[str, Any] | None) -> None:
    """Write the campaign of an attempt, and its final entries if its rounds have ended."""
    path = campaign.wanted[id_].member.directory / CAMPAIGN
    write_json(path, {"id": campaign.id, "experiment_id": id_, "boot": _boot(), "ended": ended})


def _boot() -> str:
    """The machine's boot, with which the clock of the repeats begins."""
    return system_text(BOOT).strip()
