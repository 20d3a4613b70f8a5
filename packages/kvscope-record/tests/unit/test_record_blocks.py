"""Contents of a recording's blocks: hits and evictions, from the blocks that requests got."""

from kvscope_record.blocks import BlockContents
from kvscope_record.records import Scheduled

BLOCK_TOKENS = 16


def scheduled(step: int, *rows: tuple[int, int, int, list[int]]) -> Scheduled:
    """A pass that admits requests, each with the tokens it finds and computes, and its blocks."""
    requests, result, computed, blocks = map(list, zip(*rows, strict=True))
    hits = [[request, tokens] for request, tokens in zip(requests, result, strict=True) if tokens]
    given = [[request, True, [ids]] for request, ids in zip(requests, blocks, strict=True)]
    batch = (requests, computed, result)
    return Scheduled(step, step, step + 1, 0, 9, 0, [], *batch, hits, given, [])


def test_a_request_finds_blocks_that_another_fills_in_the_same_pass():
    contents = BlockContents(BLOCK_TOKENS)
    contents.schedule(0, scheduled(0, (0, 0, 20, [1, 2]), (1, 16, 4, [1, 3])))
    (hit,) = contents.hits
    assert hit.request_id == "1"
    assert (hit.found.block, hit.found.owner, hit.found.step, hit.in_use) == (1, "0", 0, True)
    assert contents.unknown == 0


def test_a_block_that_goes_to_another_request_is_lost():
    contents = BlockContents(BLOCK_TOKENS)
    contents.schedule(0, scheduled(0, (0, 0, 16, [1])))
    contents.release(0)
    contents.schedule(1, scheduled(1, (1, 0, 16, [1])))
    contents.schedule(2, scheduled(2, (2, 16, 4, [1, 2])))
    (eviction,) = contents.evictions
    assert (eviction.step, eviction.lost.owner, eviction.hits) == (1, "0", 0)
    (hit,) = contents.hits
    assert (hit.step, hit.found.owner) == (2, "1")


def test_what_was_computed_before_the_recording_is_counted_as_unknown():
    contents = BlockContents(BLOCK_TOKENS)
    contents.schedule(0, scheduled(0, (0, 16, 4, [1, 2])))
    assert (len(contents.hits), contents.unknown) == (0, 1)
