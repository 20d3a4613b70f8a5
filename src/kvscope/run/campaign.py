"""A campaign: experiments that are measured together, from their settings to their records.

Their attempts begin together, and a campaign that was killed goes on where it ended: the file
CAMPAIGN of each attempt says which campaign it is of, and the repeats say which rounds they are of.
Once all rounds are measured, one more repeat of each experiment is served under the profiler. The
runs are then settled as any other.
"""

import json
import math
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvscope import runfile
from kvscope.engine.devices.platform import platform_of
from kvscope.errors import BadInput, KvscopeError
from kvscope.files import exit_on_sigterm, make_directory, read_json, write_json
from kvscope.machine import system_text
from kvscope.plan import together
from kvscope.plan.experiment import Experiment
from kvscope.plan.repeats import StoppingRule
from kvscope.run import supervisor
from kvscope.run.attempt import keep_whole_repeats, read_session, repeats_of
from kvscope.run.capture import CaptureSession, export
from kvscope.run.engines import Zygote
from kvscope.run.environment import measured_environment
from kvscope.run.locks import SUPERVISOR_LOCK, hold_lock
from kvscope.run.placement import gpu_clocks, placement
from kvscope.run.rounds import PROFILED, Group, Member
from kvscope.run.supervisor import Profiling, choose_profiler
from kvscope.runfile import CAMPAIGN_FILE as CAMPAIGN_FILE

ZYGOTE_LOG = "zygote.log"
BOOT = Path("/proc/sys/kernel/random/boot_id")
# What the environments of engines may differ in: each fork sets it for itself.
OF_FORK = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True)
class Wanted:
    """An experiment to measure, where its run goes, and whether a finished run is measured again."""

    experiment: Experiment
    directory: Path
    force: bool = False


@dataclass(frozen=True)
class State:
    """How far the rounds of a group are, for whoever waits for them."""

    engines: int
    round: int
    expected_rounds: int
    half_width_share: float  # of the widest comparison; NaN without one
    left_s: float
    phase: str = ""


Show = Callable[[State], None]


@dataclass(frozen=True)
class Block:
    """Members that are served in the same rounds, by the same rule."""

    ids: tuple[str, ...]
    rule: StoppingRule
    pairs: tuple[tuple[str, str], ...]


@dataclass
class Campaign:
    """What is measured together, and what came of it.

    Attributes
    ----------
    wanted
        by id, the experiments whose runs are not finished
    id
        in the records of every repeat
    key
        the comparisons that end the rounds are those in its section; of all sections if None
    failed
        by id, why there is no run
    """

    wanted: dict[str, Wanted]
    id: str
    show: Show
    key: str | None = None
    failed: dict[str, str] = field(default_factory=dict)
    widths: dict[str, float] = field(default_factory=dict)  # by id, of its block's comparisons
    began_s: float = field(default_factory=time.time)
    clocks: list[dict[str, str]] = field(default_factory=gpu_clocks)

    @property
    def members(self) -> dict[str, Member]:
        """The experiments that have not failed, with the directories of their attempts."""
        return {
            i: Member(one.experiment, one.attempt)
            for i, one in self.wanted.items()
            if i not in self.failed
        }

    def blocks(self, design: together.Design) -> list[Block]:
        """The members of each group by their stopping rules."""
        members = self.members
        found = []
        for ids in design.groups:
            by_rule: dict[StoppingRule, list[str]] = defaultdict(list)
            for i in ids:
                by_rule[members[i].experiment.stopping].append(i)
            for rule, alike in by_rule.items():
                experiments = [members[i].experiment for i in alike]
                pairs = tuple(together.comparisons(experiments, self.key))
                found.append(Block(tuple(alike), rule, pairs))
        return found


def measure(
    wanted: Sequence[Wanted], show: Show, key: str | None = None
) -> dict[str, str | None]:
    """Measure experiments together; by id why one has no complete run, None if it has.

    A finished run is kept, as `supervisor.run` says. With `key`, the comparisons that end the
    rounds are those in its section.
    """
    found: dict[str, str | None] = {one.experiment.id: None for one in wanted}
    with ExitStack() as stack:
        stack.enter_context(exit_on_sigterm())
        pending = []
        for one in wanted:
            make_directory(one.directory)
            stack.enter_context(hold_lock(one.directory, SUPERVISOR_LOCK))
            if supervisor.is_wanted(one.experiment, one.directory, one.force):
                pending.append(one)
        for alike in _of_one_zygote(pending):
            campaign = Campaign(alike, _campaign_id(alike.values()), show, key)
            run(campaign)
            found |= campaign.failed
    return found


def _of_one_zygote(wanted: Sequence[Wanted]) -> list[dict[str, Wanted]]:
    """The experiments whose engines are forks of one process, each lot by id."""
    lots: dict[str, dict[str, Wanted]] = defaultdict(dict)
    for one in wanted:
        environment = measured_environment(one.experiment)
        shared = {k: v for k, v in environment.items() if k not in OF_FORK}
        traced = platform_of(one.experiment).profiler_options
        lots[json.dumps([shared, traced], sort_keys=True)][one.experiment.id] = one
    return list(lots.values())


def _campaign_id(wanted: Iterable[Wanted]) -> str:
    """The id of the campaign that began these attempts since the machine booted, or a new one."""
    begun = [found for one in wanted if (found := _begun(one.attempt))]
    ids = {found["id"] for found in begun if found["boot"] == _boot()}
    return str(ids.pop()) if len(ids) == 1 else uuid.uuid4().hex[:ID_DIGITS]


def _begun(attempt: Path) -> dict[str, Any]:
    """What an attempt says of its campaign; empty if it is of none."""
    path = attempt / CAMPAIGN_FILE
    try:
        found = read_json(path) if path.exists() else {}
    except BadInput:
        return {}
    return found if isinstance(found, dict) and {"id", "boot", "ended"} <= found.keys() else {}


def _boot() -> str:
    """The machine's boot, with which the clock of the repeats begins."""
    return system_text(BOOT).strip()


def run(campaign: Campaign) -> None:
    """Measure, profile and settle what the campaign wants."""
    for i, one in campaign.wanted.items():
        try:
            _begin(campaign, one)
        except BadInput as error:
            supervisor.refuse(one.experiment, one.directory, str(error))
            campaign.failed[i] = str(error)
    members = campaign.members
    if not members:
        return
    design = together.design([member.experiment for member in members.values()])
    profilings = {i: choose_profiler(member.experiment) for i, member in members.items()}
    with ExitStack() as stack:
        temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="kvscope-"))
        for member in members.values():
            stack.enter_context(hold_lock(member.directory, SUPERVISOR_LOCK))
        environment = measured_environment(next(iter(members.values())).experiment)
        log = Path(temporary) / ZYGOTE_LOG
        _serve_blocks(campaign, design, environment, log)
        profilings |= _profile(campaign, profilings, environment | {"TMPDIR": temporary}, log)
    for i, member in members.items():
        facts = _facts(campaign, design, i, member, profilings[i])
        supervisor.settle(campaign.wanted[i].directory, facts)


def _begin(campaign: Campaign, one: Wanted) -> None:
    """Begin the attempt of an experiment, unless this campaign did; BadInput if it cannot be run."""
    if _begun(one.attempt).get("id") != campaign.id:
        supervisor.begin(one.experiment, one.directory)
        _note(campaign, one.attempt, ended=False)


def _note(campaign: Campaign, attempt: Path, ended: bool) -> None:
    """Write which campaign an attempt is of, and whether its rounds are all measured."""
    note = {"id": campaign.id, "boot": _boot(), "ended": ended}
    write_json(attempt / CAMPAIGN_FILE, note)


# ------------------------------------------------------------------ rounds


def _serve_blocks(
    campaign: Campaign, design: together.Design, environment: Mapping[str, str], log: Path
) -> None:
    """Measure the rounds of all blocks, one block after the other."""
    blocks = campaign.blocks(design)
    left = {i: sum(i in block.ids for block in blocks) for i in campaign.members}
    with Zygote(environment, log) as zygote:
        for place, block in enumerate(blocks):
            members = {i: m for i, m in campaign.members.items() if i in block.ids}
            if not all(_begun(m.directory)["ended"] for m in members.values()):
                parked = design.name != together.SITTINGS
                campaign.show(Starting(len(members)))
                with Group(members, zygote, campaign.id, parked) as group:
                    _serve_rounds(campaign, group, block, place, len(blocks))
                    group.finish()
                campaign.failed |= group.failed
            for i, member in members.items():
                left[i] -= 1
                if not left[i]:
                    _note(campaign, member.directory, ended=True)


def _serve_rounds(
    campaign: Campaign, group: Group, block: Block, first: int, stride: int
) -> None:
    """Serve complete rounds until the block's rule ends them.

    They are numbered `first`, `first` + `stride` and so on: each number is of one block.
    """
    clock = _Elapsed(sum(group.measured().time))
    number = max((n for i in group.active for n in group.rounds_of(i) if n % stride == first), default=first)
    while group.active:
        measured = group.measured()
        complete = _complete_rounds(group, first, stride)
        width = _widest(measured, block.pairs)
        campaign.widths |= dict.fromkeys(block.ids, width)
        campaign.show(Round.of(complete, width, clock.seconds, block.rule, len(group.active)))
        if block.rule.ends(complete, width, clock.seconds):
            return
        group.serve_round(number)
        number += stride


