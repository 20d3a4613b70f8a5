"""Operators of a process that finds a GPU that is not there (`capacity.planned_node`)."""

from kvscope.api.errors import KvscopeError


def complete() -> None:
    """Have every operator in this process; KvscopeError if its vLLM finds no GPU.

    vLLM is imported before: it registers only operators that are there.
    """
    from kvscope.api.vllm import kv_planning
    from kvscope.api.vllm_facts import platforms
    from kvscope_rehearsal import planned

    assert kv_planning
    if not platforms.is_cuda():
        raise KvscopeError(
            "this process imported vLLM for another device, and plans no GPU's KV cache; run the "
            "experiment with `kvscope run`"
        )
    planned.answer_all()
