"""Collection of garbage where no time is measured: it takes longer than most runs.

vLLM collects several times for each engine, and Python while modules are imported and passes are
recorded, all of which are kept. `run_engine` collects what an engine leaves.
"""

import gc


def leave_uncollected() -> None:
    """Import vLLM's engine, and keep it and Python from collecting garbage by themselves."""
    gc.disable()
    import vllm.v1.engine.core as core

    gc.freeze()  # what was imported is there for good
    gc.freeze = gc.unfreeze = core.freeze_gc_heap = _nothing


def _nothing() -> None:
    """No-op replacement for functions that freeze and unfreeze objects."""
