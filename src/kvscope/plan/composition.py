"""Composes a choice of options into one plain configuration, with Hydra."""

import copy
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from kvscope.base.errors import BadInput
from kvscope.base.files import check_name
from kvscope.plan import documents, layers, registry
from kvscope.plan.experiment import Experiment
from kvscope.plan.wording import but_one_of, format_value

Config = dict[str, Any]
# Choices of options: ((group, option), …).
Choices = tuple[tuple[str, str], ...]


class InstalledLayers(SearchPathPlugin):  # type: ignore[misc]  # Hydra is not type-checked
    """Adds the configuration of packages to Hydra's search path, after the user's directory.

    `hydra.searchpath` does not suffice: it has no effect on config.yaml itself.
    """

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append the installed layers."""
        for directory in layers.installed():
            search_path.append("kvscope", f"file://{directory}")


Plugins.instance().register(InstalledLayers)


def groups(config_dir: Path) -> dict[str, list[str]]:
    """The parts of an experiment that have option files, with the names of their options."""
    options = {part: list(layers.options(config_dir, part)) for part in Experiment.model_fields}
    return {part: names for part, names in options.items() if names}


class Composer:
    """Composes configurations from a directory's layers; results are cached by choice."""

    def __init__(self, config_dir: Path) -> None:
        """Read the defaults; BadInput if a layer's config.yaml cannot be used."""
        self.dir = config_dir
        self.files = layers.files(config_dir)
        self.groups = groups(config_dir)
        self._add_registered()
        self._hydra = cache(self._compose)
        self._read = cache(documents.load_mapping)
        self.default_options = self._read_defaults()

    def _add_registered(self) -> None:
        """Add the options that packages register; an option file of that name may set its keys."""
        for kind in registry.KINDS:
            names = self.groups.get(kind, [])
            for name in registry.find_registered(kind):
                if name not in names:
                    ConfigStore.instance().store(name, {"name": name}, group=kind)
                    self.groups[kind] = names = sorted([*names, name])

    def _read_defaults(self) -> dict[str, str]:
        path = self.path("config.yaml")
        entries = self._read(path).get("defaults", [])
        if not isinstance(entries, list):
            raise BadInput(f"{path}: defaults must be a list of 'group: option' entries")
        chosen = {g: o for e in entries if isinstance(e, dict) for g, o in e.items()}
        for group, option in chosen.items():
            self.check_option(group, option, f"{path}, defaults")
        return chosen

    def path(self, name: str) -> Path:
        """The file of this name in the first layer that has it, else its path in `config_dir`."""
        return self.files.get(name, self.dir / name)

    def check_option(self, group: str, option: Any, origin: str) -> None:
        """Raise BadInput unless the group has this option and its file is valid YAML."""
        names = self.groups.get(group, [])
        if isinstance(option, str):
            check_name(option, f"{group} ({origin})")
        if option not in names:
            raise BadInput(
                f"{group} is {format_value(option)} ({origin}){but_one_of(group, option, names)} "
                f"({self._where(group)})"
            )
        path = self.path(f"{group}/{option}.yaml")
        if not path.exists() and group in registry.KINDS:
            return  # the defaults of its class apply
        if "defaults" in self._read(path):  # Hydra reads other files for it
            for other in self.files.values():
                self._read(other)

    def _where(self, group: str) -> str:
        """The places where a group's options are found, in words."""
        files = layers.places(self.dir, group)
        return f"{files}, and those of installed packages" if group in registry.KINDS else files

    def compose(self, choices: Choices) -> Config:
        """Compose these choices, with the default options for other groups; returns a new copy.

        Hydra takes about 60 ms per composition. An option usually fills its own group only; then
        groups that were composed before are merged here instead.
        """
        base = self._hydra(())
        config = dict(base)
        for group, option in choices:
            single = self._hydra(((group, option),))
            if _without(single, group) != _without(base, group) or group not in single:
                config = self._hydra(choices)
                break
            config[group] = single[group]
        return copy.deepcopy(config)

    def _compose(self, choices: Choices) -> Config:
        overrides = [f"{group}='{option}'" for group, option in choices]
        first = layers.directories(self.dir)[0]
        try:
            with initialize_config_dir(str(first.absolute()), version_base="1.3"):
                config = OmegaConf.to_container(compose("config", overrides))
        except Exception as error:  # Hydra raises what it likes of a file it cannot use
            reason = " ".join(str(error).split())
            raise BadInput(f"{first}: Hydra cannot compose it: {reason}") from None
        assert isinstance(config, dict)
        return config


def _without(config: Config, key: str) -> Config:
    return {k: value for k, value in config.items() if k != key}
