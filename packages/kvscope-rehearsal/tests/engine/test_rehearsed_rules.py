"""A rehearsed GPU refuses what a GPU refuses, and accepts what a GPU accepts."""

import re
from pathlib import Path

import pytest

import rules
from rehearsals import outcomes_of

pytestmark = [pytest.mark.engine, pytest.mark.representative]

REFUSED = {
    "devices_do_not_mix": "same device",
    "numpy_has_no_gpu": "can't convert cuda:0 device type tensor to numpy",
    "a_stream_that_does_not_wait": "may not have written yet: wait for it by an event",
    "an_event_from_before_the_write": "may not have written yet: wait for it by an event",
    "an_item_that_is_set_is_written": "may not have written yet: wait for it by an event",
    "a_host_that_does_not_wait": "may not have written yet: synchronize",
    "memory_that_is_freed_while_another_stream_reads_it": "was freed while stream 1 may still use",
    "the_time_between_events_that_nobody_waited_for": "the host has not waited",
    "two_processes_with_one_gpu": "another process has GPU 0",
    "a_gpu_that_is_not_visible": "No CUDA GPUs are available",
    "functions_that_the_workers_for_cpus_replace": "current_stream is no GPU's any more",
    "kernels_that_get_the_hosts_memory": "illegal memory access: x of kernel double",
    "kernels_write_on_their_stream": "clone on stream 1 uses what stream 0",
    "blocks_that_are_both_on_the_host": "one of src and dst must be on the GPU",
    "blocks_beyond_the_memory": "no address is the GPU's",
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory, require) -> dict[str, str | None]:
    """Outcome of each program of `rules`."""
    return outcomes_of(Path(rules.__file__), tmp_path_factory.mktemp("node"), require)


@pytest.mark.parametrize("name", [*rules.PROGRAMS])
def test_rule(outcomes, name):
    said = outcomes[name]
    if name in REFUSED:
        assert said is not None, "it is not refused"
        assert re.search(re.escape(REFUSED[name]), said), said
    else:
        assert said is None, said
