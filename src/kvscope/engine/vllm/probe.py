"""Whether vLLM imports here, for `kvscope doctor`, which asks in a process of its own.

Importing vLLM takes seconds and memory, and a broken build may crash.
"""

import io
import json
import logging


def main() -> None:
    """Print torch's version and the GPUs that it sees; SystemExit with the reason for a failure.

    If its compiled kernels cannot be loaded, vLLM only logs a warning, which is detected here.
    """
    log = io.StringIO()
    logging.basicConfig(stream=log, level="WARNING", format="%(message)s")
    import torch
    from vllm import LLM, _custom_ops  # noqa: F401  (what is asked is whether they import)

    failed = [line for line in log.getvalue().splitlines() if line.startswith("Failed to import")]
    if failed:
        raise SystemExit(failed[0])
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    print(json.dumps({"torch": torch.__version__, "gpus": gpus}))
