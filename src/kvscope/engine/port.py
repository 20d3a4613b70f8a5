"""The engine port: everything that a run needs from an engine.

vLLM's is `kvscope.engine.vllm.build.VllmEngine`. What an engine says of its passes goes to the
`Recording` that `begin` gives it.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kvscope.engine.marks import Marks
from kvscope.engine.recording import Recording
from kvscope.tables.kv_group import KvGroup

if TYPE_CHECKING:
    from kvscope.engine.devices.platform import Platform
    from kvscope.plan.tracing import PassTracer


class Finished(NamedTuple):
    """A request that has been given its last token, by a pass that ended at `end_ns`.

    `chosen` is what the model would have given it, where its tokens were forced upon a model.
    """

    request_id: str
    token_ids: Sequence[int]
    end_ns: int  # of the platform's clock
    chosen: Sequence[int] | None = None


class Engine(Protocol):
    """A running engine. Requests are named as the workload names them."""

    @property
    def platform(self) -> "Platform":
        """The device that it runs on."""

    @property
    def layers(self) -> int:
        """Transformer blocks of its model."""

    @property
    def kv_groups(self) -> tuple[KvGroup, ...]:
        """The KV groups that vLLM has made of the layers; empty of another engine."""

    @property
    def tracer(self) -> "PassTracer | None":
        """The tracer of KV events; None if none are traced."""

    @property
    def kv_blocks_total(self) -> int:
        """Blocks of the KV cache that requests can use."""

    @property
    def kv_blocks_used(self) -> int:
        """Blocks of the KV cache that requests hold now."""

    @property
    def host_blocks_total(self) -> int:
        """Blocks of the host pool; 0 without one."""

    @property
    def host_blocks_used(self) -> int:
        """Blocks of the host pool that requests hold now."""

    @property
    def host_pool(self) -> dict[str, Any]:
        """The entries of run.json on the host pool."""

    def check_results(self) -> AbstractContextManager[dict[str, Any]]:
        """Within the context, check what is computed; yields checks by their keys in run.json.

        `facts` of each are what was found. This takes time, so nothing is measured meanwhile.
        """

    def empty_prefix_cache(self) -> dict[str, Any] | None:
        """Empty the prefix cache before a repeat, and return what run.json says of that.

        `emptied_by` names what did it, `cached_blocks` counts the blocks that are still cached.
        None of an engine without a prefix cache; KvscopeError if it cannot be emptied.
        """

    def begin(self, recording: Recording, marks: Marks) -> None:
        """Record into `recording` from now on; its passes are numbered from 0."""

    @property
    def passes(self) -> int:
        """Passes since `begin`."""

    def submit(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        output_tokens: int,
        output_token_ids: list[int] | None = None,
    ) -> None:
        """Take a request, to be answered with exactly its number of tokens.

        They are chosen greedily, or are `output_token_ids` if the device `forces_outputs`.
        """

    def has_unfinished_requests(self) -> bool:
        """Whether a request waits or runs."""

    def step(self) -> Sequence[Finished]:
        """Compute one pass; returns the requests that end with it."""

    def settle(self) -> None:
        """Wait for copies that are under way; no request is left."""

    def abort(self, request_ids: list[str]) -> None:
        """End requests before their last token, whether they run, wait or are preempted."""
