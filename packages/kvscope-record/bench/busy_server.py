"""A recording of a busy server without the server, written by the recorder's own classes.

    python packages/kvscope-record/bench/busy_server.py DIRECTORY [--minutes 10]

128 running requests, 30 passes a second: prompts of 1,000 tokens, of which 256 are one of eight
common prefixes, and outputs of 300 tokens, first come, first served, without preemptions.
"""

import argparse
import hashlib
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kvscope.tables.kv_plan import KvGroup
from kvscope_record.records import (
    Arrival,
    Closed,
    Done,
    Ended,
    Event,
    Live,
    Sampled,
    Scheduled,
    Segment,
)
from kvscope_record.segments import SegmentWriter

RUNNING, PASSES_PER_S = 128, 30
PROMPT_TOKENS, COMMON_TOKENS, OUTPUT_TOKENS, BLOCK_TOKENS = 1000, 256, 300, 16
PREFIXES, BLOCKS, OWN_BLOCKS = 8, 16000, 66  # a request's blocks beyond its prefix
SEGMENT_S, FLUSH_S = 60.0, 0.5
GROUP = KvGroup("FullAttention", 32, BLOCK_TOKENS, 1 << 21, 1 << 21, 1 << 21)
LLAMA = {
    **{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "head_dim": 128},
    **{"num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336},
    **{"vocab_size": 128256, "dtype": "bfloat16", "architectures": ["LlamaForCausalLM"]},
}
FACTS: dict[str, Any] = {
    **{"recording": "busy", "vllm": "0.32.0", "block_size": 16, "hash_block_size": 16},
    **{"scheduler": "vllm.v1.core.sched.scheduler.Scheduler", "policy": "fcfs"},
    **{"kv_blocks_total": BLOCKS, "kv_groups": [asdict(GROUP)], "prefix_caching": True},
    **{"async_scheduling": False, "chunked_prefill": True, "max_num_seqs": RUNNING},
    **{"max_num_batched_tokens": 8192, "max_model_len": 4096, "watermark": None},
    **{"draft_tokens": 0, "connector": None, "tensor_parallel": 1, "pipeline_parallel": 1},
    **{"data_parallel_rank": 0, "device": "cuda", "model": LLAMA},
}


@dataclass
class _Request:
    arrival: Arrival
    blocks: list[int]
    prefix: int
    cached: int = 0
    given: int = 0


@dataclass
class Server:
    """The scheduler's side of the recording: the events of one pass after another."""

    pass_ns: int = 10**9 // PASSES_PER_S
    step: int = 0
    time_ns: int = 10**9
    running: list[_Request] = field(default_factory=list)
    free: deque[int] = field(default_factory=lambda: deque(range(1, BLOCKS + 1)))
    prefixes: dict[int, list[int]] = field(default_factory=dict)
    ended: list[int] = field(default_factory=list)
    came: int = 0
    done: list[Done] = field(default_factory=list)  # since the segment before the newest one
    done_before: int = 0  # of these, those that ended before the newest segment

    def _arrive(self) -> Arrival:
        number, self.came = self.came, self.came + 1
        common = COMMON_TOKENS // BLOCK_TOKENS
        hashes = [_hash(number % PREFIXES, at) for at in range(common)]
        hashes += [_hash(number + PREFIXES, at) for at in range(PROMPT_TOKENS // 16 - common)]
        return Arrival(number, self.time_ns, PROMPT_TOKENS, OUTPUT_TOKENS, hashes)

    def next_pass(self) -> Iterator[Event]:
        """The events of a pass; of the first ones, requests come one by one."""
        start = self.time_ns
        fresh: dict[int, list[int]] = {}
        hits, grown = [], []
        for _ in range(min(1, RUNNING - len(self.running))):
            arrival = self._arrive()
            yield arrival
            prefix = arrival.request % PREFIXES
            common = self.prefixes.get(prefix)
            if common is None:
                common = [self.free.popleft() for _ in range(COMMON_TOKENS // BLOCK_TOKENS)]
                self.prefixes[prefix] = common
            else:
                hits.append([arrival.request, COMMON_TOKENS])
            request = _Request(arrival, list(common), prefix)
            request.cached = COMMON_TOKENS if hits else 0
            own = -(-PROMPT_TOKENS // BLOCK_TOKENS) - len(common)
            request.blocks += [self.free.popleft() for _ in range(own)]
            fresh[arrival.request] = request.blocks
            self.running.append(request)
        computed = []
        for request in self.running:
            tokens = PROMPT_TOKENS - request.cached if not request.given else 1
            computed.append(tokens)
            if request.arrival.request not in fresh:
                needed = -(-(request.cached + tokens) // BLOCK_TOKENS)
                if needed > len(request.blocks):
                    request.blocks.append(self.free.popleft())
                    grown.append([request.arrival.request, False, [request.blocks[-1:]]])
        numbers = [request.arrival.request for request in self.running]
        given = [[n, True, [[*ids]]] for n, ids in fresh.items()] + grown
        cached = [request.cached for request in self.running]
        ended, self.ended = self.ended, []
        yield Scheduled(
            *(self.step, start, start + 400_000, 0, len(self.free), 0, ended, numbers),
            *(computed, cached, hits, given, []),
        )
        end = start + self.pass_ns - 300_000
        yield Sampled(self.step, end - 200_000, end, numbers, [1] * len(numbers))
        for request, tokens in zip(self.running, computed, strict=True):
            request.cached += tokens
            request.given += 1
        for request in [one for one in self.running if one.given == OUTPUT_TOKENS]:
            number = request.arrival.request
            yield Ended(number, *_end(end))
            self.ended.append(number)
            self.done.append(Done(*request.arrival[:4], *_end(end)))
            self.free.extend(request.blocks[: COMMON_TOKENS // BLOCK_TOKENS - 1 : -1])
            self.running.remove(request)
        self.step += 1
        self.time_ns += self.pass_ns

    def at_segment(self) -> Iterator[Live | Done]:
        """What a segment begins with."""
        for request in self.running:
            a = request.arrival
            yield Live(
                *(a.request, a.time_ns, a.prompt_tokens, a.max_tokens, a.hashes),
                *(request.given, request.cached, 0, [[*request.blocks]]),
            )
        yield from self.done
        self.done = self.done[self.done_before :]
        self.done_before = len(self.done)


def _end(time_ns: int) -> tuple[int, str, int, int]:
    return time_ns, "FINISHED_LENGTH_CAPPED", 0, OUTPUT_TOKENS


def _hash(owner: int, at: int) -> str:
    return hashlib.blake2b(f"{owner} {at}".encode(), digest_size=8).hexdigest()


def write(directory: Path, seconds: float, segment_s: float = SEGMENT_S) -> None:
    """Write a recording of so many seconds, whose last pass is now, into a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    server, number = Server(), 0
    began_ns = server.time_ns
    utc_ns = time.time_ns() - int(seconds * 1e9) - began_ns  # of the clock's zero
    file: SegmentWriter | None = None
    flushed_ns = next_ns = began_ns
    while server.time_ns - began_ns < seconds * 1e9:
        if server.time_ns >= next_ns:
            frame = 0
            if file is not None:
                file.close()
                frame = file.next_frame
            file = SegmentWriter(directory, number + 1, frame=frame)
            now_ns = server.time_ns
            file.write(Segment(FACTS, number, now_ns, utc_ns + now_ns, server.step, 0, server.came))
            for begun in server.at_segment():
                file.write(begun)
            number, next_ns = number + 1, next_ns + int(segment_s * 1e9)
        assert file is not None
        for event in server.next_pass():
            file.write(event)
        if server.time_ns - flushed_ns >= FLUSH_S * 1e9:
            file.flush()
            flushed_ns = server.time_ns
    if file is not None:
        file.write(Closed(server.time_ns, utc_ns + server.time_ns))
        file.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--segment", type=float, default=SEGMENT_S)
    given = parser.parse_args()
    write(given.directory, given.minutes * 60, given.segment)
