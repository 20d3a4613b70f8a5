"""Parts of Triton kernels that record KV events: clocks, order and places of events.

With INSTRUMENT off, no instruction of this is compiled. With it on, each thread block (CTA) has its
own *segment* of the events' buffer and writes there, in the order of its work and at places that
follow from the batch alone: no atomics, and the same places whatever runs first. What has no room
is counted and left out. A segment's header says what was recorded and where, and has two pairs of
the SM's clock, in which events are stamped, and the device-wide timer (buffer.HEADER).

A block's loads lie between its two stamps by construction. Their addresses are computed from the
start stamp (`order_after`), and the values computed from the data pass through `await_data` before
the end stamp is taken. Loads must not be prefetched: launch with num_stages=1. A write has left its
thread before the end stamp; a kernel cannot observe when it reaches memory.

CLOCK 0 reads the hardware's clocks. 1 counts the stamps taken, in `counter`: Triton's interpreter,
which the tests use, has no clock.
"""

import triton
import triton.language as tl

from kvscope_kernels import kv_events as events

EVENT_WORDS = tl.constexpr(events.RECORD_WORDS)
LONGEST = tl.constexpr(events.LONGEST_TICKS)


@triton.jit
def read_clock(counter, CLOCK: tl.constexpr):
    """The SM's clock, in its ticks."""
    if CLOCK == 0:
        now = tl.inline_asm_elementwise(
            "mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
        )
    else:
        now = tl.atomic_add(counter, 1)
    return now


@triton.jit
def read_timer(counter, CLOCK: tl.constexpr):
    """The device-wide timer, in nanoseconds; it may move in steps of a microsecond."""
    if CLOCK == 0:
        now = tl.inline_asm_elementwise(
            "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
        )
    else:
        now = tl.atomic_add(counter, 1)
    return now


@triton.jit
def read_processor(CLOCK: tl.constexpr):
    """The streaming multiprocessor that this CTA runs on."""
    if CLOCK == 0:
        sm = tl.inline_asm_elementwise(
            "mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=True, pack=1
        ).to(tl.int64)
    else:
        sm = tl.program_id(0).to(tl.int64) * 0
    return sm


@triton.jit
def order_after(block, stamp):
    """Return the block index, made dependent on the stamp, whose sign bit is never set."""
    return block + (stamp >> 63)


@triton.jit
def await_data(x, CLOCK: tl.constexpr):
    """Return the float32 tensor after all threads have their part: a barrier for the compiler."""
    if CLOCK == 0:
        x = tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=False, pack=1
        )
    tl.debug_barrier()
    return x


@triton.jit
def put_event(events, place, end, word0, block, position, offset, tokens, start, stop):
    """Store one event if its place lies before `end`."""
    duration = tl.minimum(stop - start, LONGEST)
    word1 = block | (position << 32)
    word2 = offset | (tokens << 16) | (duration << 32)
    i = tl.arange(0, 4)
    words = tl.where(i == 0, word0, tl.where(i == 1, word1, tl.where(i == 2, word2, start)))
    tl.store(events + place * EVENT_WORDS + i, words, mask=place < end)


@triton.jit
def open_segment(header, counter, place, CLOCK: tl.constexpr):
    """Note where and when a segment begins, and where its events do."""
    tl.store(header + 7, place)
    tl.store(header + 2, read_processor(CLOCK))
    tl.store(header + 3, read_clock(counter, CLOCK))
    tl.store(header + 4, read_timer(counter, CLOCK))


@triton.jit
def close_segment(header, counter, made, room, CLOCK: tl.constexpr):
    """Note how many events of those made had room, how many had none, and the time."""
    used = tl.minimum(made, tl.maximum(room, 0))
    tl.store(header, used)
    tl.store(header + 1, made - used)
    tl.store(header + 5, read_clock(counter, CLOCK))
    tl.store(header + 6, read_timer(counter, CLOCK))


@triton.jit
def read_timer_often(out, counter, count, CLOCK: tl.constexpr):
    """So many readings of the timer, one after the other."""
    for i in range(count):
        tl.store(out + i, read_timer(counter, CLOCK))
