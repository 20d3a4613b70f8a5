"""Where the configuration is read from: a directory of the user's, then the one kvscope ships.

`SHIPPED` holds what a checkout has at its root and an installed kvscope has beside its code. In the
checkout its entries are symbolic links, so it is the same in a checkout, an editable install and a
wheel.
"""

from pathlib import Path

import kvscope

SHIPPED = Path(kvscope.__file__).parent / "shipped"
SHIPPED_CONFIG = (SHIPPED / "config").resolve()
STUDY_SCHEMA = SHIPPED_CONFIG / "study.schema.json"  # plan.schema makes it


def directories(config_dir: Path) -> list[Path]:
    """The layers that there are, the first one first: `config_dir` and the shipped configuration.

    Without a `config_dir` on disk, or if it is the shipped one, there is one layer.
    """
    if not config_dir.is_dir():
        return [SHIPPED_CONFIG]
    if config_dir.resolve() == SHIPPED_CONFIG:
        return [config_dir]
    return [config_dir, SHIPPED_CONFIG]


def files(config_dir: Path) -> dict[str, Path]:
    """The YAML files by name, 'config.yaml' or 'model/tiny-llama.yaml', in the order of names.

    Of a name that both layers have, it is the first layer's file.
    """
    found = {
        path.relative_to(directory).as_posix(): path
        for directory in reversed(directories(config_dir))
        for pattern in ("*.yaml", "*/*.yaml")
        for path in directory.glob(pattern)
        if path.is_file()  # an editor's lock is a link to nothing
    }
    return dict(sorted(found.items()))


def options(config_dir: Path, group: str) -> dict[str, Path]:
    """The options of a group by name, or the studies (group 'study'): their files."""
    prefix = f"{group}/"
    return {p.stem: p for name, p in files(config_dir).items() if name.startswith(prefix)}


def places(config_dir: Path, group: str) -> str:
    """'the files in config/model and …/config/model': where the options of a group are."""
    holders = [directory / group for directory in directories(config_dir)]
    return f"the files in {' and '.join(str(path) for path in holders if path.is_dir())}"
