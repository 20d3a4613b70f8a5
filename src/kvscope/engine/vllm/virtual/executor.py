"""A vLLM executor without a worker: a pass and its copies take time on a virtual clock.

Scheduler, KV-cache manager and the connector's scheduler half are the real ones; a request is
answered with the tokens of the workload, or all with the same one.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from vllm.utils.torch_utils import kv_cache_dtype_str_to_dtype
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheSpec
from vllm.v1.outputs import ModelRunnerOutput

from kvscope.engine.vllm.connectors.virtual import VirtualWorker
from kvscope.engine.vllm.link import Link
from kvscope.engine.vllm.outputs import known_outputs
from kvscope.engine.vllm.ranks import stages
from kvscope.engine.vllm.scheduled import contexts
from kvscope.engine.vllm.virtual.block_tables import BlockTables
from kvscope.engine.vllm.without_worker import WithoutWorker
from kvscope.plan.device import Device

if TYPE_CHECKING:
    from kvscope.engine.devices.virtual.clock import VirtualClock
    from kvscope.engine.devices.virtual.costs import Costs

PLENTY_BYTES = 1 << 60  # the experiment says how many blocks there are


class PassListener(Protocol):
    """An object that notes each pass before its time goes by."""

    def note(
        self,
        tokens: Mapping[str, int],
        contexts: Mapping[str, int],
        blocks: Mapping[str, Sequence[int]],
        start_ns: int,
    ) -> None:
        """Note a pass that begins at `start_ns`; the pass may be empty.

        By request, `tokens` are computed, `contexts` are in the cache before, in these `blocks`.
        """


class VirtualExecutor(WithoutWorker):
    """The executor of one engine; a subclass (`executor_class`) has its clock, costs and listener.

    `by_config` says that vLLM's own layers say what the KV cache keeps.
    """

    clock: ClassVar["VirtualClock"]
    costs: ClassVar["Costs"]
    by_config: ClassVar[bool]
    listener: ClassVar[PassListener | None]

    def _init_executor(self) -> None:
        self._tokens: dict[str, int] = {}  # of each unfinished request: its length
        self._outputs: dict[str, Iterator[int]] = {}  # and what it is still to be given
        self._blocks = BlockTables()
        self._link = Link(self.clock, self.costs)
        self._worker: VirtualWorker | None = None  # of the connector, once there are orders

    def get_kv_cache_specs(self) -> list[dict[str, KVCacheSpec]]:
        """Full attention in every layer; of other families what vLLM's own layers keep."""
        model = self.model_config
        if self.by_config:
            return [stage.specs for stage in stages(self.vllm_config)]
        spec = FullAttentionSpec(
            block_size=self.cache_config.block_size,
            num_kv_heads=model.get_total_num_kv_heads(),
            head_size=model.get_head_size(),
            dtype=kv_cache_dtype_str_to_dtype(self.cache_config.cache_dtype, model),
        )
        layers = model.hf_text_config.num_hidden_layers
        return [{f"model.layers.{layer}.self_attn.attn": spec for layer in range(layers)}]

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        """vLLM's default; nothing is laid out."""
        return [["LBHNC"]]

    def determine_available_memory(self) -> list[int]:
        """More than any cache."""
        return [PLENTY_BYTES]

    def get_kv_connector_handshake_metadata(self) -> list[Any]:
        """No worker hands anything over."""
        return [None]

    def shutdown(self) -> None:
        """No-op: there is nothing to end."""

    def execute_model(self, scheduler_output: SchedulerOutput, non_block: bool = False) -> Any:
        """Let the time of the pass go by and answer with a token for each finished prompt."""
        orders = scheduler_output.kv_connector_metadata
        worker = self._worker_for(orders)
        if worker is not None:
            worker.before_pass(orders)
        self._follow_lengths(scheduler_output)
        started = dict(contexts(scheduler_output))
        scheduled = scheduler_output.num_scheduled_tokens
        if self.listener is not None:
            self._blocks.follow(scheduler_output)
            self.listener.note(scheduled, started, self._blocks.of, self.clock.now_ns())
        if scheduled:
            self.clock.wait(self.costs.pass_s((n, started[name]) for name, n in scheduled.items()))
        report = None if worker is None else worker.after_pass(orders, empty=not scheduled)
        sampled = [self._sampled(name, started[name] + n) for name, n in scheduled.items()]
        output = ModelRunnerOutput(
            req_ids=list(scheduled),
            req_id_to_index={name: row for row, name in enumerate(scheduled)},
            sampled_token_ids=sampled,
            kv_connector_output=report,
        )
        if not non_block:
            return output
        future: Future[ModelRunnerOutput] = Future()
        future.set_result(output)
        return future

    def _worker_for(self, orders: Any) -> VirtualWorker | None:
        """The object that carries out a connector's orders; None without one."""
        kind: type[VirtualWorker] | None = getattr(orders, "virtual_worker", None)
        if self._worker is None and kind is not None:
            self._worker = kind(self._link)
        return self._worker

    def _follow_lengths(self, scheduler_output: SchedulerOutput) -> None:
        """Keep the length of each unfinished request, as a worker does."""
        for name in scheduler_output.finished_req_ids:
            self._tokens.pop(name, None)
            self._outputs.pop(name, None)
        for new in scheduler_output.scheduled_new_reqs:
            self._tokens[new.req_id] = len(new.prompt_token_ids or ())
            self._outputs[new.req_id] = iter(
                known_outputs(new.sampling_params) or repeat(Device.TOKEN)
            )

    def _sampled(self, name: str, computed: int) -> list[int]:
        """A token if the request is computed to its end; none for a chunk short of it."""
        if computed < self._tokens[name]:
            return []
        self._tokens[name] += 1
        return [next(self._outputs[name])]


def executor_class(
    clock: "VirtualClock", costs: "Costs", by_config: bool, listener: PassListener | None
) -> type[VirtualExecutor]:
    """The class that vLLM makes one engine's executor of."""
    attributes = {"clock": clock, "costs": costs, "by_config": by_config, "listener": listener}
    return type("VirtualExecutor", (VirtualExecutor,), attributes)
