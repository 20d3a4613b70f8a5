"""Cost of recording: kvscope's kernel without and with it, beside vLLM's Triton kernel."""

import time
import traceback
from typing import Any

import torch
from equal_requests import Workload
from events import compared, errors

from smoke.place import DEVICE, REHEARSED, sentence, store

# (requests, tokens of each, of which are new)
SIZES = (
    *((1, 512, 1), (1, 8192, 1), (8, 2048, 1), (32, 2048, 1), (128, 512, 1)),
    *((1, 512, 512), (4, 2048, 2048)),
)
IN_SMALL = ((3, 70, 1), (1, 40, 40))
SMALL_HEADS = {"heads": 2, "head_size": 32} if REHEARSED else {}


def main(seconds: float) -> list[str]:
    """Measure every size; a fault is a wrong output or event, however fast."""
    rows: list[dict[str, Any]] = []
    result: list[str] = []
    for requests, tokens, new in IN_SMALL if REHEARSED else SIZES:
        start = time.perf_counter()
        try:
            row = compared(Workload(requests, tokens, new, torch.device(DEVICE), **SMALL_HEADS))
            result += errors(row)
        except Exception as error:
            traceback.print_exc()
            row = {"requests": requests, "tokens": tokens, "queries": new}
            row["error"] = sentence(error)
            result.append(f"{requests} × {tokens} tokens, {new} queries: {row['error']}")
        rows.append(row | {"took_s": time.perf_counter() - start})
        store("recording", rows)
        print(rows[-1], flush=True)
        torch.cuda.empty_cache()
    return result
