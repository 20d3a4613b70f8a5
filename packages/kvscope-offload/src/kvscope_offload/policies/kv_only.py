"""`kv_only`: K and V on the host, pinned and pipelined: FlexGen's placement, scheduled fairly."""

from kvscope_offload.policy import OffloadPolicy


class KvOnly(OffloadPolicy):
    """Everything that the link could do for K and V alone."""
