"""Setting values that decide how the records of a run are read."""

from typing import Final

VLLM_0_4_2: Final = "vllm-0.4.2"  # `cache.admission`: the release that the paper ran
ALL_AT_ONCE: Final = "all_at_once"  # `workload.arrival`
