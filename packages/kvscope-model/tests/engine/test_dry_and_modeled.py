"""`device=dry` decides what the modeled device decides."""

import pandas as pd
import pytest

from kvscope.judge.records import read_records
from tests.engine.conftest import directory_of
from tests.engine.test_dry import DRY, words
from tests.warm import Warm

pytestmark = [pytest.mark.engine, pytest.mark.slow]

# All requests arrive at once, so decisions on it do not depend on durations.
MODELED = (
    *("device=modeled", "device.kernels=vllm", "cache.admission=vllm", "cache.watermark=0"),
    *("cache.layout=by_layer", "profiler=none"),
)
TIMES = ("_s", "_ns")


@pytest.mark.parametrize("name", ["recompute, mixed", "swap, chunked", "swap, prefill first"])
def test_it_decides_what_a_modeled_run_decides(name: str, warm: Warm) -> None:
    run = read_records(directory_of(warm, words(DRY, name), "dry"))
    other = read_records(directory_of(warm, words(MODELED, name), "modeled"))
    for table in ("batch", "preemptions", "steps"):
        one, two = getattr(run, table), getattr(other, table)
        counts = [column for column in one if not column.endswith(TIMES) and column != "stalled"]
        pd.testing.assert_frame_equal(one[counts], two[counts])
