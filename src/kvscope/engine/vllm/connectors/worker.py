"""The worker's half of the KV connector of this process."""

from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

from kvscope.engine.overflow.host_tier import HostTier, tier_of


def worker_tier() -> HostTier:
    """The host tier of the worker of this process."""
    return tier_of(get_kv_transfer_group() if has_kv_transfer_group() else None)
