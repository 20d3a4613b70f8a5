"""A point of a grid: the settings of each layer, and the experiment they define."""

import copy
from dataclasses import dataclass, field
from functools import cache, reduce
from pathlib import Path
from typing import Annotated, Any, NoReturn

from pydantic import BaseModel, ValidationError

from kvscope.base.errors import BadInput
from kvscope.plan.complaints import all_keys, mapping_keys, part_classes
from kvscope.plan.composition import Composer, Config
from kvscope.plan.decisions import Decisions, Draft
from kvscope.plan.demand import size_cache
from kvscope.plan.device import Device
from kvscope.plan.experiment import Experiment, parse
from kvscope.plan.expressions import resolve
from kvscope.plan.models import Model
from kvscope.plan.parts import CacheSettings, EngineSettings
from kvscope.plan.policy import Batching
from kvscope.plan.registry import OneOf
from kvscope.plan.sources import Location, fill_in
from kvscope.plan.study import Grid, Settings
from kvscope.plan.wording import format_value, suggestion
from kvscope.plan.workload import Workload

DEVICE_SETS = "sets"  # key of a device's option file: defaults of other groups with this device


class Parts(BaseModel):
    """The parts of a configuration by which an engine decides."""

    model: Model
    device: Annotated[Device, OneOf("device")]
    engine: EngineSettings
    batching: Annotated[Batching, OneOf("batching")]
    cache: CacheSettings


@dataclass(frozen=True)
class Point:
    """The settings that a study's grid and the command line make at one point.

    `decided` are values of the device's engine, which take precedence.
    """

    composer: Composer
    grid: Grid
    study_settings: Settings
    command_settings: Settings
    decided: Decisions = field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        """All settings beyond the defaults; those of the command line take precedence."""
        return self.study_settings | self.command_settings

    def place(self, key: str) -> Location:
        """The place where a dotted key's value is written."""
        if key in self.decided:
            return Location(self.decided[key].origin, Path())
        groups = self.composer.groups
        layers = (
            (self.command_settings, Location("the command line", Path())),
            (self.study_settings, Location(self.grid.origin, self.grid.directory)),
        )
        for layer, place in layers:
            if any(k == key or (k not in groups and key.startswith(f"{k}.")) for k in layer):
                return place
        group = key.partition(".")[0]
        option = self._option(group)
        file = "config.yaml" if option is None else f"{group}/{option}.yaml"
        path = self.composer.path(file)
        return Location(str(path), path.parent)

    def origin(self, key: str) -> str:
        """The place where a dotted key's value is written, in words for a message."""
        return self.place(key).words

    def config(self) -> Config:
        """The configuration: defaults, options, settings of study and command line, decisions."""
        groups = self.composer.groups
        choices = {key: value for key, value in self.settings.items() if key in groups}
        for group, option in choices.items():
            self.composer.check_option(group, option, self.origin(group))
        config = self.composer.compose(tuple(sorted(choices.items())))
        self._set_device_defaults(config)
        for layer in (self.study_settings, self.command_settings):
            self._drop_others(config, layer)
            for key, value in layer.items():
                if key not in groups:
                    self._set(config, key, value)
        for key, decision in self.decided.items():
            self._set(config, key, decision.value)
        return resolve(config, self.origin)

    def experiment(self, config: Config) -> Experiment:
        """The experiment of this point's configuration; BadInput names key, value and place."""
        workload = config.get("workload")
        if isinstance(workload, dict):
            kinds = part_classes(Experiment.model_fields["workload"], workload)
            if len(kinds) == 1 and issubclass(kind := kinds[0], Workload):
                config = config | {"workload": fill_in(workload, kind, self.place)}
                config = size_cache(config, kind, self.origin)
        return parse(config, self.origin)

    def draft(self, config: Config) -> Draft | None:
        """The draft of this point's configuration; None if it is not valid, which parsing says."""
        try:
            parts = Parts.model_validate(config)
        except ValidationError:
            return None
        whole_prompts = parts.batching.cuts_prompts == "never"
        given = frozenset(self.settings)
        return Draft(parts.device, parts.model, parts.engine, parts.cache, whole_prompts, given)

    def value(self, config: Config, key: str) -> Any:
        """A key's value: the option's name for a group, None if there is no such key."""
        if key in self.composer.groups:
            return self._option(key)
        return reduce(_item, key.split("."), config)

    def _option(self, group: str) -> str | None:
        """The selected option of a group; None if it is not a group or has no selection."""
        if group not in self.composer.groups:
            return None
        option: str | None = self.settings.get(group, self.composer.default_options.get(group))
        return option

    def _set(self, config: Config, key: str, value: Any) -> None:
        *parents, name = key.split(".")
        if name == "name" and parents != ["model"]:
            group = ".".join(parents)
            raise BadInput(f"{key} ({self.origin(key)}) cannot be set; write {group}={value}")
        holder: Any = reduce(_item, parents, config)
        if not isinstance(holder, dict):
            self._refuse_below(holder, key)
        holder[name] = copy.deepcopy(value)

    def _set_device_defaults(self, config: Config) -> None:
        """Have the device's `sets` replace the defaults of other groups, where these have the key.

        So a device that imitates a published set-up has its host pool only with a policy of one.
        """
        device = config.get("device")
        sets = device.pop(DEVICE_SETS, None) if isinstance(device, dict) else None
        if sets is None:
            return
        origin = f"{self.origin('device')}, {DEVICE_SETS}"
        if not isinstance(sets, dict):
            raise BadInput(f"{origin} must be a group of dotted keys with their values")
        check_keys(sets, origin)
        for key, value in sets.items():
            *parents, name = key.split(".")
            holder = reduce(_item, parents, config)
            if isinstance(holder, dict) and name in holder:
                holder[name] = value

    def _refuse_below(self, holder: Any, key: str) -> NoReturn:
        keys, above = _experiment_keys(), key.rpartition(".")[0]
        if key in keys and holder is not None:
            why = f"cannot be set where {above} is {format_value(holder)} ({self.origin(above)})"
        else:
            why = f"is not a key{suggestion(key, keys)}"
        raise BadInput(f"{key} ({self.origin(key)}) {why}")

    def _drop_others(self, config: Config, layer: Settings) -> None:
        """Drop alternatives of the keys that a layer sets, if exactly one of them must be set.

        For example, a cache size in blocks replaces the size in GiB of a lower layer.
        """
        for group in dict.fromkeys(key.partition(".")[0] for key in layer):
            section, names = config.get(group), _one_of(group, config.get(group))
            chosen = [name for name in names if layer.get(f"{group}.{name}") is not None]
            if len(chosen) == 1 and isinstance(section, dict):
                section |= {name: None for name in names if name in section and name not in chosen}


def check_keys(settings: Settings, origin: str) -> None:
    """Raise BadInput for a key that no experiment has."""
    for key in settings:
        if key not in _experiment_keys() and key.rpartition(".")[0] not in _mapping_keys():
            raise BadInput(f"{key} ({origin}) is not a key{suggestion(key, _experiment_keys())}")


def _item(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, dict) else None


def _one_of(group: str, value: Any) -> tuple[str, ...]:
    """The keys of a group of which exactly one must be set."""
    field = Experiment.model_fields.get(group)
    classes = part_classes(field, value) if field else []
    return classes[0].one_of if len(classes) == 1 else ()


@cache
def _experiment_keys() -> frozenset[str]:
    return frozenset(all_keys(Experiment))


@cache
def _mapping_keys() -> frozenset[str]:
    return frozenset(mapping_keys(Experiment))
