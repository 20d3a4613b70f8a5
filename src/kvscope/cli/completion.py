"""Completion of command lines in bash and zsh, by argcomplete.

Every press of the tab key runs this, so nothing heavy is imported: keys and their values come from
the JSON Schema of studies, options from file names.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import argcomplete
from argcomplete.completers import DirectoriesCompleter, FilesCompleter

from kvscope.base import layout, plugins
from kvscope.plan import layers

Completer = Callable[..., Iterable[str]]

RUN_FILE = "run.json"  # repeated from kvscope.tables.runfile, which imports pydantic

directories: Completer = DirectoriesCompleter()
planned_experiments: Completer = FilesCompleter(("yaml", "yml"))


def complete(parser: argparse.ArgumentParser) -> None:
    """Print the completions that the shell requests through the environment, and exit."""
    for action in _actions(parser):
        completer = COMPLETERS.get(action.dest)
        if completer:
            action.completer = completer  # type: ignore[attr-defined]  # argcomplete's own
    argcomplete.autocomplete(parser, always_complete_options=False)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                command.mixes = False  # argcomplete follows argparse's own order
                yield from _actions(command)


def overrides(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """`study=` and all keys, each followed by '='; after 'key=', the values of the key."""
    key, equals, value = prefix.partition("=")
    if not equals:
        return [f"{name}=" for name in ("study", *_values(_is_extended(prefix)))]
    before = value[: value.rfind(",") + 1]  # in `model=a,b` the last value is completed
    return [f"{key}={before}{v}" for v in values(key, parsed_args.config_dir)]


def words(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """The arguments of `kvscope run`: an experiment's file, or overrides."""
    return [*overrides(prefix, parsed_args), *planned_experiments(prefix)]


def values(key: str, config_dir: Path) -> list[str]:
    """The known values of a key: studies, options of a group, or an enumeration; else none."""
    registered = plugins.names(f"kvscope.{key}")
    enumerated = _values(_is_extended(key)).get(key, ())
    return list(dict.fromkeys([*layers.options(config_dir, key), *registered, *enumerated]))


def _is_extended(key: str) -> bool:
    """Whether a key is of a group to which another package adds options, which have keys."""
    group, dot, _ = key.partition(".")
    points = entry_points(group=f"kvscope.{group}") if dot else ()
    return any(point.dist is not None and point.dist.name != "kvscope" for point in points)


@cache
def _values(extended: bool) -> dict[str, list[str]]:
    """The keys of a study, each with the values that the schema enumerates.

    With `extended` of all installed packages, which takes a second: their options are loaded.
    """
    if extended:
        from kvscope.plan.schema import study_schema

        schema = study_schema()
    else:
        schema = json.loads(layers.STUDY_SCHEMA.read_text(encoding="utf-8"))
    keys = schema["$defs"]["settings"]["properties"]
    return {key: list(_enumerated(schema["$defs"][key])) for key in keys}


def _enumerated(value: dict[str, Any]) -> Iterator[str]:
    for variant in value["anyOf"]:
        yield from variant.get("enum", [variant["const"]] if "const" in variant else [])
        if variant.get("type") == "boolean":
            yield from ("true", "false")


def runs(prefix: str, **_: Any) -> list[str]:
    """Directories of runs in results/ or the working directory; if none matches, any directory."""
    places = (layout.RESULTS / layout.EXPERIMENTS, Path())
    directories_ = [str(path.parent) for place in places for path in place.glob(f"*/{RUN_FILE}")]
    return [run for run in directories_ if run.startswith(prefix)] or list(directories(prefix))


def studies_and_runs(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Planned studies, or directories of runs, as `kvscope report` takes them."""
    planned = parsed_args.results.glob(f"{layout.STUDIES}/*/{layout.MANIFEST}")
    return [*(path.parent.name for path in planned), *runs(prefix)]


def kinds(prefix: str, **_: Any) -> tuple[str, ...]:
    """The kinds of published files that `kvscope import` reads."""
    return plugins.names("kvscope.importer")


# By the name of an argument; a name has the same meaning in all commands.
COMPLETERS: dict[str, Completer] = {
    "overrides": overrides,
    "experiment": words,
    "kind": kinds,
    "run": runs,
    "runs": runs,
    "what": studies_and_runs,
    "predict": studies_and_runs,
    "config_dir": directories,
    "results": directories,
    "out": directories,
    "write": directories,
}
