"""Operators of a process that finds a GPU that is not there (`capacity.planned_node`)."""


def complete() -> None:
    """Have every operator in this process, which has such an environment.

    vLLM is imported before: it registers only operators that are there.
    """
    from kvscope.api.vllm import kv_planning
    from kvscope_rehearsal import planned

    assert kv_planning
    planned.answer_all()
