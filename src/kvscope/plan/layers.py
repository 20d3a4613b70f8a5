"""The layers of the configuration: the user's directory, kvscope's, and those of packages.

`SHIPPED` contains config, Snakefile, profiles and envs. In a checkout its entries are symbolic
links to the checkout's root, so the path is the same in a checkout, an editable install and a
wheel. Another package brings its directory as an entry point:

    [project.entry-points."kvscope.config"]
    my_package = "my_package.config"
"""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import kvscope
from kvscope.base import plugins
from kvscope.base.errors import BadInput

SHIPPED = Path(kvscope.__file__).parent / "shipped"
SHIPPED_CONFIG = (SHIPPED / "config").resolve()
STUDY_SCHEMA = SHIPPED_CONFIG / "study.schema.json"  # plan.schema makes it
GROUP = "kvscope.config"


@cache
def package_directories() -> tuple[Path, ...]:
    """The directories that other packages bring; BadInput if one does not exist."""
    modules = (plugins.find(GROUP, name).value for name in plugins.names(GROUP))
    return tuple(sorted(map(_directory_of, modules)))


def _directory_of(module: str) -> Path:
    """The directory of a module, which need not have an __init__.py."""
    try:
        spec = find_spec(module)
    except Exception:  # whatever a package raises where it is imported
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise BadInput(
            f"{module}, which an installed package registers under {GROUP!r}, is not a directory "
            "of modules; fix or uninstall the package"
        )
    return Path(next(iter(spec.submodule_search_locations))).resolve()


def installed() -> list[Path]:
    """The directories that come with packages: the shipped one first."""
    return [SHIPPED_CONFIG, *package_directories()]


def directories(config_dir: Path) -> list[Path]:
    """The directories of the layers in order of precedence: `config_dir`, then the installed.

    `config_dir` need not exist, and may be an installed one.
    """
    if not config_dir.is_dir():
        return installed()
    user = config_dir.resolve()
    return [config_dir, *(other for other in installed() if other != user)]


def files(config_dir: Path) -> dict[str, Path]:
    """All YAML files by name ('config.yaml', 'model/tiny-llama.yaml'), sorted by name.

    A file of `config_dir` replaces the installed one of its name; BadInput if two packages have
    files of one name.
    """
    paths: dict[str, Path] = {}
    for directory in installed():
        for name, path in _files(directory).items():
            if name in paths:
                raise BadInput(
                    f"two packages have a file {name} in their configuration, {paths[name]} and "
                    f"{path}; uninstall one of them"
                )
            paths[name] = path
    return dict(sorted((paths | _files(config_dir)).items()))


def _files(directory: Path) -> dict[str, Path]:
    """The YAML files of one layer by name."""
    return {
        path.relative_to(directory).as_posix(): path
        for pattern in ("*.yaml", "*/*.yaml")
        for path in directory.glob(pattern)
        if path.is_file()  # an editor's lock file is a dangling link
    }


def options(config_dir: Path, group: str) -> dict[str, Path]:
    """The files of a group's options by option name; group 'study' has the studies."""
    prefix = f"{group}/"
    return {p.stem: p for name, p in files(config_dir).items() if name.startswith(prefix)}


def places(config_dir: Path, group: str) -> str:
    """The directories of a group's options in words: 'the files in a/model and b/model'."""
    holders = [directory / group for directory in directories(config_dir)]
    return f"the files in {' and '.join(str(path) for path in holders if path.is_dir())}"
