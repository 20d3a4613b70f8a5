"""One point of a grid: which layer set which value, and the experiment they make."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, reduce
from pathlib import Path
from typing import Any, NoReturn

from kvscope.errors import BadInput
from kvscope.plan.complaints import all_keys, format_value, part_classes, suggestion
from kvscope.plan.composition import Composer, Config
from kvscope.plan.experiment import Experiment, parse
from kvscope.plan.expressions import resolve
from kvscope.plan.sources import Location, fill_in
from kvscope.plan.study import Grid, Settings
from kvscope.plan.workload import Workload


@dataclass(frozen=True)
class Point:
    """Values set by a grid of a study (`chosen`) and by the command line (`given`)."""

    composer: Composer
    grid: Grid
    study_settings: Settings
    command_settings: Settings

    @property
    def settings(self) -> Settings:
        """All that is set beyond the defaults; the command line wins."""
        return self.study_settings | self.command_settings

    def place(self, key: str) -> Location:
        """Where a dotted key's value is written."""
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
        """Where a dotted key's value comes from, in words: the place to fix it."""
        return self.place(key).words

    def config(self) -> Config:
        """The whole configuration: defaults, options, the study's values, the command line's."""
        groups = self.composer.groups
        choices = {key: value for key, value in self.settings.items() if key in groups}
        for group, option in choices.items():
            self.composer.check_option(group, option, self.origin(group))
        config = self.composer.compose(tuple(sorted(choices.items())))
        for layer in (self.study_settings, self.command_settings):
            self._drop_others(config, layer)
            for key, value in layer.items():
                if key not in groups:
                    self._set(config, key, value)
        return resolve(config, self.origin)

    def experiment(self, config: Config) -> Experiment:
        """The experiment of this point's configuration; BadInput names key, value and place."""
        workload = config.get("workload")
        if isinstance(workload, dict):
            found = part_classes(Experiment.model_fields["workload"], workload)
            if len(found) == 1 and issubclass(kind := found[0], Workload):
                config = config | {"workload": fill_in(workload, kind, self.place)}
        return parse(config, self.origin)

    def value(self, config: Config, key: str) -> Any:
        """A key's value: for a group the option chosen, None where there is no such key."""
        if key in self.composer.groups:
            return self._option(key)
        return reduce(_item, key.split("."), config)

    def _option(self, group: str) -> str | None:
        """The option chosen of a group; None if it is no group, or none was chosen."""
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

    def _refuse_below(self, holder: Any, key: str) -> NoReturn:
        known, above = _experiment_keys(), key.rpartition(".")[0]
        if key in known and holder is not None:
            why = f"cannot be set where {above} is {format_value(holder)} ({self.origin(above)})"
        else:
            why = f"is not a key{suggestion(key, known)}"
        raise BadInput(f"{key} ({self.origin(key)}) {why}")

    def _drop_others(self, config: Config, layer: Settings) -> None:
        """Of keys of which one must be set, one that a layer sets replaces those of layers below.

        So the cache's size in blocks replaces that in GiB.
        """
        for group in dict.fromkeys(key.partition(".")[0] for key in layer):
            held, names = config.get(group), _one_of(group, config.get(group))
            given = [name for name in names if layer.get(f"{group}.{name}") is not None]
            if len(given) == 1 and isinstance(held, dict):
                held |= {name: None for name in names if name in held and name not in given}


def check_keys(settings: Settings, origin: str) -> None:
    """Raise BadInput for a key that no experiment has."""
    for key in settings:
        if key not in _experiment_keys():
            raise BadInput(f"{key} ({origin}) is not a key{suggestion(key, _experiment_keys())}")


def label(varied: Mapping[str, Any], groups: Mapping[str, Any]) -> str:
    """'zipf, chunked, blocks=60': options by their names, values by the last part of their key."""
    parts = (
        str(value) if key in groups else f"{key.rpartition('.')[2]}={format_value(value)}"
        for key, value in varied.items()
        if value is not None
    )
    return ", ".join(parts)


def _item(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, dict) else None


def _one_of(group: str, value: Any) -> tuple[str, ...]:
    """The keys of a group of which exactly one must be set."""
    field = Experiment.model_fields.get(group)
    found = part_classes(field, value) if field else []
    return found[0].one_of if len(found) == 1 else ()


@cache
def _experiment_keys() -> frozenset[str]:
    return frozenset(all_keys(Experiment))
