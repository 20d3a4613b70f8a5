"""The figures of a study, one module each; `registry.FIGURES` lists them.

To add one, write a module with a `Figure` and add it to the registry.
"""
