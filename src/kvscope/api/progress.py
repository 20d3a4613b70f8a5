"""How far the experiments of a plan have come."""

from kvscope.tables.progress import is_finished

__all__ = ["is_finished"]
