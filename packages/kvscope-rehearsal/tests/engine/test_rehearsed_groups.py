"""A model with two KV groups on device=cuda, by vLLM's own attention in Triton."""

import pytest

from rehearsals import HOST_POOL, Rehearsal

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

SETTINGS = {
    "device": "cuda",
    "model": "tiny-interleaved",
    "profiler": "none",
    "repeats": 1,
    "engine.max_model_len": 32,
    "engine.max_num_batched_tokens": 32,
    "engine.max_num_seqs": 4,
    "cache.block_size": 16,
    "cache.blocks": 22,
    "workload.num_requests": 2,
    "workload.prompt_tokens": 14,
    "workload.output_tokens": 5,
}


def test_blocks_of_all_groups_are_swapped_and_tokens_stay_the_same(tmp_path, require, forked):
    rehearsal = Rehearsal(tmp_path, require)
    swap = {"overflow": "swap"} | HOST_POOL | {"overflow.host_blocks": 60}
    rehearsal.add_study("groups", {"set": SETTINGS, "linked": [{"overflow": "recompute"}, swap]})
    done = rehearsal.kvscope("run", "study=groups", "--multirun", "--tables")
    assert done.returncode == 0, done.stdout
    rehearsal.assert_valid()
    recomputed, swapped = rehearsal.experiments
    assert rehearsal.outputs(swapped) == rehearsal.outputs(recomputed)
    assert len(rehearsal.table(swapped, "kv_groups")) > 1
    moved = rehearsal.table(swapped, "transfers").groupby("direction")["blocks"].sum()
    assert moved["in"] == moved["out"] > 0
