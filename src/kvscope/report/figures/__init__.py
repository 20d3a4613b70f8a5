"""The figures of a study, one module each; `registry.FIGURES` lists them.

To add one, write a module with a `StudyFigure` and name it in the registry.
"""
