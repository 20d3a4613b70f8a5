"""Unpacks a pack's wheels: `python unpack.py PACK SITE ROOT`.

SITE is then a directory of packages, among them vLLM's Python files; the checkout ROOT is described
there as the distributions that it has, so that their entry points are found, and SITE/bin has their
commands. pip takes a minute.
"""

import os
import sys
import tomllib
import zipfile
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from pathlib import Path

COMMANDS = "console_scripts"  # a group of entry points
COMMAND = """#!{python}
import sys
from {module} import {function}
sys.exit({function}())
"""


def unpack(wheel: Path, site: Path) -> str:
    """All files of a wheel, but for its scripts."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".data/" not in name]
        archive.extractall(site, names)
    return wheel.name


def describe(project: Path, site: Path) -> None:
    """The metadata and entry points of a checkout's pyproject.toml."""
    text = (project / "pyproject.toml").read_text(encoding="utf-8")
    result = tomllib.loads(text)["project"]
    name, version = result["name"], result["version"]
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(exist_ok=True)
    described = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (info / "METADATA").write_text(described, encoding="utf-8")
    lines: list[str] = []
    groups = result.get("entry-points", {}) | {COMMANDS: result.get("scripts", {})}
    for group, entries in groups.items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in entries.items()), ""]
    (info / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")


def write_commands(site: Path) -> None:
    """The commands of the distributions in SITE."""
    (site / "bin").mkdir()
    for distribution in metadata.distributions(path=[str(site)]):
        for entry in distribution.entry_points.select(group=COMMANDS):
            path = site / "bin" / entry.name
            path.write_text(
                COMMAND.format(python=sys.executable, module=entry.module, function=entry.attr),
                encoding="utf-8",
            )
            path.chmod(0o755)


def main(pack: Path, site: Path, root: Path) -> None:
    """Unpack side by side, the largest first."""
    site.mkdir(parents=True, exist_ok=True)
    wheels = sorted((pack / "wheels").glob("*.whl"), key=lambda wheel: -wheel.stat().st_size)
    with ProcessPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for name in pool.map(unpack, wheels, [site] * len(wheels)):
            print(name)
    for project in (root, *sorted(root.glob("packages/kvscope-*"))):
        describe(project, site)
    write_commands(site)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
