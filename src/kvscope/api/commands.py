"""Declaring a command of the command line: its arguments, their types, how it ends.

Imported whenever `kvscope` starts, it brings the standard library alone.
"""

from kvscope.commands.command import (
    CONFIG_DIR,
    OVERRIDES_HELP,
    RESULTS_DIR,
    argument,
    command,
    duration,
    flag,
    path,
    place,
    plan_command,
    size,
    whole,
)
from kvscope.errors import EXIT_DONE, EXIT_FAILED
from kvscope.quantities import DURATION_HELP, SIZE_HELP

__all__ = [
    "CONFIG_DIR",
    "DURATION_HELP",
    "EXIT_DONE",
    "EXIT_FAILED",
    "OVERRIDES_HELP",
    "RESULTS_DIR",
    "SIZE_HELP",
    "argument",
    "command",
    "duration",
    "flag",
    "path",
    "place",
    "plan_command",
    "size",
    "whole",
]
