"""The block tables that a worker would keep, of a model with one KV group."""

from vllm.v1.core.sched.output import SchedulerOutput


class BlockTables:
    """The blocks of each unfinished request, by vLLM's ids."""

    def __init__(self) -> None:
        self.of: dict[str, list[int]] = {}

    def follow(self, scheduled: SchedulerOutput) -> None:
        """Update the tables from the scheduler's output for a pass."""
        for name in scheduled.finished_req_ids:
            self.of.pop(name, None)
        for new in scheduled.scheduled_new_reqs:
            self.of[new.req_id] = list(new.block_ids[0])
        cached = scheduled.scheduled_cached_reqs
        for name, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if name in cached.resumed_req_ids:
                self.of[name] = []
            if blocks is not None:
                self.of[name] += blocks[0]
