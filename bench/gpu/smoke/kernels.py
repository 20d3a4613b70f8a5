"""kvscope's kernels against PyTorch's attention, and their events against the contract."""

import time
import traceback
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
from cuda_cases import CASES, LAYER, Case
from triton_interpreted import UNTOUCHED, Outcome, attention

from smoke.place import DEVICE, REHEARSED, sentence, store

TOLERANCES = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 2e-2}
DESCRIBED = ["kind", "row", "kv_head", "block_position", "offset_tokens", "tokens"]
IN_SMALL = ("decode, MHA", "mixed, GQA, float16, split, heads first")


def main(seconds: float) -> list[str]:
    """Judge every case."""
    rows: list[dict[str, Any]] = []
    for name, case in cases().items():
        start = time.perf_counter()
        try:
            row = judged(case)
        except Exception as error:
            traceback.print_exc()
            row = {"faults": [sentence(error)]}
        rows.append({"case": name, "seconds": time.perf_counter() - start, **row})
        store("kernels", rows)
        print(rows[-1], flush=True)
    return [f"{row['case']}: {'; '.join(row['faults'])}" for row in rows if row["faults"]]


def cases() -> dict[str, Case]:
    """The cases of the tests, also in bfloat16, and of Llama-2-7B's sizes."""
    if REHEARSED:
        return {name: CASES[name] for name in IN_SMALL}
    result = dict(CASES)
    result |= {f"{name}, bfloat16": replace(case, dtype="bfloat16") for name, case in CASES.items()}
    large = Case((900, 33, 512), (1, 1, 1), 32, 32, 128, processors=132)
    mixed = replace(large, context=(700, 0, 40), queries=(1, 200, 64))
    for dtype in ("float16", "bfloat16"):
        result[f"7B, decode, {dtype}"] = replace(large, dtype=dtype)
        result[f"7B, mixed, {dtype}"] = replace(mixed, dtype=dtype)
    result["7B, blocks of 128"] = replace(mixed, dtype="float16", block_size=128, capacity=400_000)
    return result


def judged(case: Case) -> dict[str, Any]:
    """Complaints about a case, run with and without recording."""
    on, off = attention(case, on=DEVICE), attention(case, instrument=False, on=DEVICE)
    headers = np.concatenate((on.writes, on.reads))
    taken = np.concatenate([np.arange(h["place"], h["place"] + h["events"]) for h in headers])
    tests = {
        "the output is not PyTorch's": close(case, on),
        "recording changes the output": np.array_equal(on.output, off.output),
        "recording changes the cache": np.array_equal(on.cache, off.cache, equal_nan=True),
        "events are not those that are due": due(case, on, taken),
        "places are used twice": len(set(taken.tolist())) == len(taken),
        "events are dropped": not headers["dropped"].any(),
        "something is written elsewhere": bool(
            (np.delete(on.words, taken, axis=0) == UNTOUCHED).all()
        ),
        "a segment is not in order": all(in_order(on, header) for header in headers),
        "the timer goes back": not (headers["end_timer"] < headers["start_timer"]).any(),
    }
    return {
        "difference": float(np.abs(on.output - on.expected).max()),
        "events": len(taken),
        "sms": len(set(headers["sm"].tolist())),
        "faults": [sentence for sentence, holds in tests.items() if not holds],
    }


def close(case: Case, outcome: Outcome) -> bool:
    """Whether the output equals that of plain attention within a tolerance."""
    tolerance = TOLERANCES[case.dtype]
    return np.allclose(outcome.output, outcome.expected, rtol=tolerance, atol=tolerance)


def due(case: Case, outcome: Outcome, taken: np.ndarray) -> bool:
    """Whether exactly the events are there that the contract demands, with layer and block."""
    events = outcome.events[taken]
    blocks = outcome.table[events["row"], events["block_position"]]
    result = Counter(events[DESCRIBED].tolist())
    return bool(
        result == case.writes() + case.reads()
        and (events["layer"] == LAYER).all()
        and (events["block"] == blocks).all()
    )


def in_order(outcome: Outcome, header: np.void) -> bool:
    """Whether a segment's stamps are in the order of its work."""
    own = outcome.events[header["place"] : header["place"] + header["events"]]
    ends = own["start_ticks"] + own["duration_ticks"]
    stamps = (header["start_clock"], *np.stack((own["start_ticks"], ends), 1).ravel())
    steps = np.diff([int(stamp) for stamp in (*stamps, header["end_clock"])])
    return bool((steps >= 0).all())
