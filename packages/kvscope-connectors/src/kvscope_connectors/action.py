"""The action of vLLM's offloading with a preempted request's blocks."""

from kvscope.api.tables import actions

NATIVE = actions.Action("native", loads=True, resumed="to load from the host or to compute again")
