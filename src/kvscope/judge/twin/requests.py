"""The state of a request during a replay."""

from dataclasses import dataclass, field

from kvscope.judge.twin.pool import Block
from kvscope.judge.twin.told import Content, Job, Victim

Hit = tuple[int, Content, bool]
"""A block that was found: its number, its content, and whether others held it."""


@dataclass(slots=True)
class Lost:
    """A preemption from which the request has not resumed: the action, and the lost tokens."""

    step: int
    order: int  # among all preemptions
    victim: Victim
    action: str
    refused: bool
    tokens: int


@dataclass(slots=True)
class InPool:
    """Tokens and blocks of a victim in the host pool, without those at some places."""

    tokens: int
    blocks: int
    missing: list[int]


@dataclass(slots=True, eq=False)
class Request:
    """The state of one request. `order` is its place in the workload."""

    id: str
    prompt: int
    due: int  # output tokens that it asks for
    arrival_s: float
    order: int

    tokens: int = 0  # in the KV cache
    highest: int = 0  # the most that it ever had there
    given: int = 0  # output tokens
    running: bool = False
    preemptions: int = 0

    slots: int = 0  # tokens that it has blocks for
    skipped: int = 0  # tokens computed when its windows last let go
    held: list[int] = field(default_factory=list)  # blocks of each KV group
    blocks: list[Block] = field(default_factory=list)  # the same where each is known
    cached: int = 0  # of these, those that are in the prefix cache from its start on
    computing: bool = False  # its blocks count as those of a request that passes compute

    found: list[Hit] = field(default_factory=list)  # as it was admitted last
    hit: int = 0  # tokens of these
    load: Job | None = None  # under way
    loaded: int = 0  # tokens that a load has brought, until its next pass
    stored: int = 0  # its blocks up to here have been offered to the host

    lost: Lost | None = None
    recovering: bool = False  # from a preemption until it gives a token
    cost_row: int | None = None  # the row of its last resumption
    copied_s: float = 0.0
    in_pool: InPool | None = None
    saved: int | None = None  # tokens whose activations the host has

    first_s: float | None = None
    token_s: float | None = None
    last_s: float | None = None
    ended_s: float | None = None

    @property
    def length(self) -> int:
        """Tokens of its prompt and of its output so far."""
        return self.prompt + self.given
