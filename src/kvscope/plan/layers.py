"""The layers of the configuration: the user's directory, then the one that kvscope ships.

`SHIPPED` contains config, Snakefile, profiles and envs. In a checkout its entries are symbolic
links to the checkout's root, so the path is the same in a checkout, an editable install and a
wheel.
"""

from pathlib import Path

import kvscope

SHIPPED = Path(kvscope.__file__).parent / "shipped"
SHIPPED_CONFIG = (SHIPPED / "config").resolve()
STUDY_SCHEMA = SHIPPED_CONFIG / "study.schema.json"  # plan.schema makes it


def directories(config_dir: Path) -> list[Path]:
    """The directories of the layers in order of precedence: `config_dir`, the shipped one.

    One layer only, if `config_dir` does not exist or is the shipped configuration.
    """
    if not config_dir.is_dir():
        return [SHIPPED_CONFIG]
    if config_dir.resolve() == SHIPPED_CONFIG:
        return [config_dir]
    return [config_dir, SHIPPED_CONFIG]


def files(config_dir: Path) -> dict[str, Path]:
    """All YAML files by name ('config.yaml', 'model/tiny-llama.yaml'), sorted by name.

    A file of the first layer replaces the shipped file of the same name.
    """
    found = {
        path.relative_to(directory).as_posix(): path
        for directory in reversed(directories(config_dir))
        for pattern in ("*.yaml", "*/*.yaml")
        for path in directory.glob(pattern)
        if path.is_file()  # an editor's lock file is a dangling link
    }
    return dict(sorted(found.items()))


def options(config_dir: Path, group: str) -> dict[str, Path]:
    """The files of a group's options by option name; group 'study' has the studies."""
    prefix = f"{group}/"
    return {p.stem: p for name, p in files(config_dir).items() if name.startswith(prefix)}


def places(config_dir: Path, group: str) -> str:
    """The directories of a group's options in words: 'the files in a/model and b/model'."""
    holders = [directory / group for directory in directories(config_dir)]
    return f"the files in {' and '.join(str(path) for path in holders if path.is_dir())}"
