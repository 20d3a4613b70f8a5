"""Packs: members, and the nodes on which they run."""

from dataclasses import asdict, dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class Member:
    """A shell command that runs once, on its own GPUs.

    Attributes
    ----------
    key
        names its files in the pack's directory; unique among all members of a controller
    name
        for people
    expected_s
        seconds that it is expected to take; it is not begun when less is left
    timeout_s
        seconds after which it is ended
    exclusive
        whether it has a node alone
    logs
        files that it writes besides its output, in which a failure is explained
    """

    key: str
    name: str
    command: str
    cwd: str
    expected_s: float
    timeout_s: float
    gpus: int = 1
    exclusive: bool = False
    logs: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        """Read what `asdict` made."""
        return cls(**{**plain, "logs": tuple(plain.get("logs", ()))})


@dataclass(frozen=True)
class Pack:
    """Members that share one job of the batch system.

    Attributes
    ----------
    slots_per_node, gpus_per_slot
        members at a time on a node, and the GPUs of each
    walltime_s
        of the job, whole minutes
    margin_s
        seconds before the job's end at which the last member is ended
    poll_s
        seconds between two looks of a running member at the attempt file
    affinity
        CPUs of each slot in Parsl's notation, `list:24-31:16-23`; `none` leaves it to the system
    interfaces
        network interfaces on which nodes reach the first one; the first that exists is used
    setup
        shell lines before anything else, on each node
    stage
        a tar archive of the environment's site-packages, unpacked on each node; empty for none
    """

    id: str
    queue: str
    nodes: int
    slots_per_node: int
    gpus_per_slot: int
    walltime_s: int
    members: tuple[Member, ...]
    exclusive: bool = False
    margin_s: float = 60.0
    launcher: str = "fork"
    affinity: str = "none"
    interfaces: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    stage: str = ""
    poll_s: float = 5.0
    heartbeat_s: float = 30.0
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def slots(self) -> int:
        """Members that run at a time."""
        return self.nodes * self.slots_per_node

    @property
    def node_hours(self) -> float:
        """Node-hours that the job costs at most."""
        return self.nodes * self.walltime_s / 3600

    @property
    def fill(self) -> float:
        """Share of the slots that at least one member uses."""
        return min(1.0, len(self.members) / self.slots)

    def as_json(self) -> dict[str, Any]:
        """Contents of plan.json."""
        return asdict(self)

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        """Read what `as_json` made."""
        members = tuple(map(Member.from_json, plain["members"]))
        lists = {key: tuple(plain[key]) for key in ("interfaces", "setup")}
        return cls(**{**plain, **lists, "members": members})
