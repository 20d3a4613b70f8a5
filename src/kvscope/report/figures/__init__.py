"""The figures of a study, one module each; `registry.figures` has all.

To add one, write a module with a `Figure` and register it in pyproject.toml.
"""
