"""From choices of options to one plain configuration, by Hydra."""

import copy
import re
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from kvscope.errors import BadInput
from kvscope.files import check_name
from kvscope.plan import documents, policies
from kvscope.plan.complaints import nearest, shown
from kvscope.plan.overrides import options

Config = dict[str, Any]
# Choices of options: ((group, option), …).
Choices = tuple[tuple[str, str], ...]


class Composer:
    """Composes configurations of one directory, each distinct choice of options once."""

    def __init__(self, config_dir: Path) -> None:
        """Read the defaults; BadInput if the directory or its config.yaml cannot be used."""
        if not (config_dir / "config.yaml").is_file():
            raise BadInput(f"{config_dir} must be a directory with a config.yaml")
        self.dir = config_dir
        self.groups = {
            path.name: options(config_dir, path.name)
            for path in sorted(config_dir.iterdir())
            if path.is_dir() and path.name != "study"
        }
        self._add_policies()
        self._hydra = cache(self._compose)
        self._read = cache(documents.load_mapping)
        self.default_options = self._read_defaults()

    def _add_policies(self) -> None:
        """Policies of other packages are options, too; a file of that name may hold settings."""
        for kind in policies.KINDS:
            known = self.groups.get(kind, [])
            for name in policies.registered(kind):
                if name not in known:
                    ConfigStore.instance().store(name, {"name": name}, group=kind)
                    self.groups[kind] = known = sorted([*known, name])

    def _read_defaults(self) -> dict[str, str]:
        path = self.dir / "config.yaml"
        entries = self._read(path).get("defaults", [])
        if not isinstance(entries, list):
            raise BadInput(f"{path}: defaults must be a list of 'group: option' entries")
        chosen = {g: o for e in entries if isinstance(e, dict) for g, o in e.items()}
        for group, option in chosen.items():
            self.check_option(group, option, f"{path}, defaults")
        return chosen

    def check_option(self, group: str, option: Any, origin: str) -> None:
        """Raise BadInput unless the group has this option, in a file that is valid YAML."""
        known = self.groups.get(group, [])
        if isinstance(option, str):
            check_name(option, f"{group} ({origin})")
        if option not in known:
            raise BadInput(
                f"{group} is {shown(option)} ({origin}){nearest(str(option), known)} but must be "
                f"one of {', '.join(known)} ({self._where(group)})"
            )
        path = self.dir / group / f"{option}.yaml"
        if not path.exists() and group in policies.KINDS:
            return  # of another package
        if "defaults" in self._read(path):  # Hydra reads other files for it
            for other in self.dir.rglob("*.yaml"):
                self._read(other)

    def _where(self, group: str) -> str:
        """Where a group's options are."""
        files = f"the files in {self.dir / group}"
        return f"{files}, and installed policies" if group in policies.KINDS else files

    def compose(self, choices: Choices) -> Config:
        """The configuration of these choices, the default options elsewhere; a copy to change.

        Composing costs Hydra some 60 ms. Options fill their own group only, as a rule: then the
        groups, each composed once, are put together here.
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
        try:
            with initialize_config_dir(str(self.dir.absolute()), version_base="1.3"):
                config = OmegaConf.to_container(compose("config", overrides))
        except Exception as error:  # Hydra raises what it likes of a file it cannot use
            reason = " ".join(str(error).split())
            raise BadInput(f"{self.dir}: Hydra cannot compose it: {reason}") from None
        assert isinstance(config, dict)
        return config


def _without(config: Config, key: str) -> Config:
    return {k: value for k, value in config.items() if k != key}


def resolve(config: Config) -> Config:
    """Replace `${key}` by the value of that key.

    `${resolver:…}` is refused: an experiment must mean the same everywhere and always.
    """
    texts = [(key, text) for key, text in _texts(config) if "${" in text]
    if not texts:
        return config
    for key, text in texts:
        if re.search(r"\$\{[^}]*:", text):
            raise BadInput(f"{key} is {text!r} but must not call a resolver, only name a key")
    try:
        resolved = OmegaConf.to_container(OmegaConf.create(config), resolve=True)
    except (OmegaConfBaseException, RecursionError) as error:
        key, text = texts[0]
        reason = str(error).splitlines()[0]
        raise BadInput(f"{key} is {text!r}, which cannot be resolved: {reason}") from None
    assert isinstance(resolved, dict)
    return resolved


def _texts(value: Any, key: str = "") -> list[tuple[str, str]]:
    """All texts in nested mappings, each with its dotted key."""
    if isinstance(value, dict):
        prefix = f"{key}." if key else ""
        return [found for k, item in value.items() for found in _texts(item, f"{prefix}{k}")]
    return [(key, value)] if isinstance(value, str) else []
