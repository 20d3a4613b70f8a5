"""The words of a configuration: labels of its keys, and names of its options.

This is below the classes that declare the keys, so that who writes about a setting need not import
them: `plan.experiment` adds to SOURCES what finds their labels.
"""

from collections.abc import Callable

from kvscope.base import plugins
from kvscope.plan.fields import Label

KINDS = ("device", "workload", "batching", "overflow")
"""Sections of the configuration whose options are classes, of kvscope and of other packages."""

SOURCES: list[Callable[[str], Label | None]] = []


def label(key: str) -> Label | None:
    """The label of a dotted key; None without a label."""
    return next((label_ for source in SOURCES if (label_ := source(key))), None)


def is_option(name: str) -> bool:
    """Whether an installed package registers an option under this name."""
    return any(name in plugins.names(entry_point_group(kind)) for kind in KINDS)


def entry_point_group(kind: str) -> str:
    """The entry-point group of a kind of option."""
    return f"kvscope.{kind}"
