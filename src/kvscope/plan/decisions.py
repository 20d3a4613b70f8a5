"""Values that a device's engine decides itself, whatever the settings ask for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kvscope.plan.parts import CacheSettings, ChosenDevice, ChosenModel, EngineSettings


class Decision(NamedTuple):
    """A value that an engine decides, and its origin, in words.

    `note` says what was asked for, what is planned and why; '' of a default.
    """

    value: Any
    origin: str
    note: str = ""


Decisions = Mapping[str, Decision]
"""Decisions by dotted key."""


@dataclass(frozen=True)
class Draft:
    """The parts of an experiment by which its engine decides, as they are asked for.

    `given` are the dotted keys that the study or the command line sets; `whole_prompts` says that
    the batching policy cuts no prompt.
    """

    device: ChosenDevice
    model: ChosenModel
    engine: EngineSettings
    cache: CacheSettings
    whole_prompts: bool
    given: frozenset[str]
