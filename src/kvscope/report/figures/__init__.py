"""The figures of a study; `registry.figures` has all.

A metric's panel stands in `of_metrics`, any other figure in a module of its own. pyproject.toml
registers each.
"""
