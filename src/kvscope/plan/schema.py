"""The JSON Schema of study files, with which editors complete keys and mark mistakes.

It is generated from the classes that the planner validates with:

    python -m kvscope.plan.schema > config/study.schema.json

Every study that the planner accepts is valid under the schema, unless it excludes a value that its
key can never have. The planner refuses more: keys that the selected options do not have, and
combinations that cannot work. Any name is valid as an option of a group, since users add options as
files; any figure, and any key of devices, workloads and policies, since packages add their own. The
shipped schema suggests what kvscope itself has, that beside a user's studies what is installed.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvscope.base import plugins
from kvscope.base.files import write_text_if_changed
from kvscope.plan import layers, registry
from kvscope.plan.composition import groups
from kvscope.plan.experiment import Experiment
from kvscope.plan.figures import EXPERIMENT, GRID, GROUP, Axes, figure_names
from kvscope.plan.repeats import RepeatsUntil
from kvscope.plan.study import StudyFile

Schema = dict[str, Any]

# The first line of a study, by which an editor finds its schema.
MODELINE = f"# yaml-language-server: $schema=../{layers.STUDY_SCHEMA.name}"

NULL: Schema = {"type": "null"}
TEXT: Schema = {"type": "string"}
REFERENCE: Schema = {"type": "string", "pattern": r"\$\{"}  # ${key}, the value of another key
SINGLE: Schema = {"type": ["string", "number", "boolean", "null"]}
OPTION_KEY = rf"^({'|'.join(registry.KINDS)})\.(?!name$)"

# Pydantic keeps its own names of bounds in the schema of a number with a validator before it.
BOUNDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
}
KEPT = {"type", "enum", "const", "pattern", "maxLength", *BOUNDS.values()}
LINE = 120  # characters of a line of the file


def text(shipped: bool = False) -> str:
    """The schema as a file, of all that is installed or of kvscope's own."""
    return _laid_out(study_schema(shipped)) + "\n"


def _laid_out(value: Any, depth: int = 0, before: str = "") -> str:
    """JSON text with each value on a line of its own where it fits, after `before`."""
    line = before + json.dumps(value)
    if depth + len(line) <= LINE or not isinstance(value, dict | list):
        return line
    if isinstance(value, dict):
        parts = [_laid_out(v, depth + 1, f"{json.dumps(name)}: ") for name, v in value.items()]
    else:
        parts = [_laid_out(item, depth + 1) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    margin = "\n" + " " * depth
    return f"{before}{opening}{margin} {f',{margin} '.join(parts)}{margin}{closing}"


def write_for_editors(config_dir: Path) -> None:
    """Write the schema beside a directory's studies; the shipped directory has its own."""
    if config_dir.resolve() != layers.SHIPPED_CONFIG:
        write_text_if_changed(config_dir / layers.STUDY_SCHEMA.name, text())


def study_schema(shipped: bool = False) -> Schema:
    """The JSON Schema (draft 7) of a study file; `$defs` has the value of each dotted key.

    It suggests the keys and figures of all installed packages; with `shipped`, kvscope's own.
    """
    values = _options(shipped) | _leaves(shipped)
    settable = {key: _ref(key) for key in values if not _names_the_option(key)}
    row = {"allOf": [_ref("settings")], "minProperties": 1}
    rows = _list(_ref("row"), at_least=1)
    study = StudyFile.model_json_schema()
    grid = study["$defs"].pop("GridFile")
    grid["properties"] |= {
        "set": _ref("settings"),
        "product": _mapping(
            {key: _list(value, at_least=1) for key, value in settable.items()},
            _list(SINGLE, at_least=1),
        ),
        "linked": _any_of([_list(_ref("row")), _list(rows)]),
        "exclude": _list(
            _mapping({key: _any_of([_ref(key), NULL]) for key in values}, SINGLE)
            | {"minProperties": 1}
        ),
    }
    for name in ("Entry", "Axes", "Question"):
        study["$defs"].pop(name)
    study["properties"]["compare"] = _question()
    names = {"type": "object", "minProperties": 1, "additionalProperties": TEXT}
    study["properties"]["levels"] = {
        "type": "object",
        "propertyNames": _ref("axis"),
        "additionalProperties": names,
    }
    study["properties"]["grids"]["items"] = _ref("grid")
    study["properties"]["figures"] = _list(_figure(shipped))
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **_untitled(study),
        "description": "A study of kvscope; README.md of its configuration explains every key.",
        "$defs": {
            "grid": _untitled(grid),
            "row": row,
            "settings": _mapping(settable, SINGLE),
            **_axes(values),
            **values,
        },
    }


def _question() -> Schema:
    """The key that a study compares, its base, and the keys that go along."""
    properties = {"key": _ref("axis"), "base": SINGLE, "along": _list(_ref("axis"))}
    required = ["key", "base"]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _figure(shipped: bool) -> Schema:
    """Schema of a figure: its name, or its name with axes; any name, with suggestions."""
    names = [name for name in figure_names() if not (shipped and plugins.origin(GROUP, name))]
    axes = _ref("axes_of_rows")
    named = {"properties": dict.fromkeys(names, axes), "additionalProperties": axes}
    return _any_of(
        [
            {"enum": names},
            TEXT,
            {"type": "object", "minProperties": 1, "maxProperties": 1, **named},
        ]
    )


def _axes(values: Schema) -> Schema:
    """The schemas of axes: any text, with the known keys as suggestions."""
    properties = dict.fromkeys(Axes.model_fields, _ref("axis")) | {"where": {"type": "object"}}
    return {
        "axis": _any_of([{"enum": [*values, EXPERIMENT, GRID]}, TEXT, NULL]),
        "axes": {"type": "object", "properties": properties, "additionalProperties": False},
        "axes_of_rows": _any_of([_ref("axes"), _list(_ref("axes"))]),
    }


def _options(shipped: bool) -> dict[str, Schema]:
    """The schema of each group's value: any option name, the installed options as suggestions."""
    schemas = {}
    for group in groups(layers.SHIPPED_CONFIG):
        files = layers.options(layers.SHIPPED_CONFIG, group)
        ours = [name for name, path in files.items() if layers.SHIPPED_CONFIG in path.parents]
        schemas[group] = _any_of([{"enum": ours if shipped else [*files]}, TEXT])
    return schemas


def _leaves(shipped: bool) -> dict[str, Schema]:
    """The schema of each dotted key that is not a group: any type that some option gives it."""
    experiment = Experiment.model_json_schema()
    leaves = list(_walk(experiment, experiment, ""))
    for kind in registry.KINDS:
        for name, option in registry.load_all(kind).items():
            if not (shipped and registry.package_origin(kind, name)):
                model = option.model_json_schema()
                leaves += _walk(model, model, kind)
    kinds_of: dict[str, list[Schema]] = {}
    for key, value in leaves:
        schemas = kinds_of.setdefault(key, [])
        if value not in schemas:
            schemas.append(value)
    kinds_of["repeats"].append(_repeats())
    return {key: _any_of([*kinds, REFERENCE]) for key, kinds in kinds_of.items()}


def _repeats() -> Schema:
    """The schema of `repeats` as a group of keys."""
    keys = list(RepeatsUntil.model_fields)
    return {
        "type": "object",
        "properties": {key: _ref(f"repeats.{key}") for key in keys},
        "required": keys,
        "additionalProperties": False,
    }


def _walk(root: Schema, node: Schema, key: str) -> Iterator[tuple[str, Schema]]:
    """All single values below a node, each with its dotted key; none of a mapping of anything."""
    if "$ref" in node:
        node = root["$defs"][node["$ref"].rpartition("/")[2]]
    for variant in node.get("anyOf") or node.get("oneOf") or ():
        yield from _walk(root, variant, key)
    for name, child in node.get("properties", {}).items():
        yield from _walk(root, child, f"{key}.{name}" if key else name)
    anything = node.get("additionalProperties") is True
    if "type" in node and "properties" not in node and not anything:
        bounded = {BOUNDS.get(word, word): value for word, value in node.items()}
        yield key, {word: value for word, value in bounded.items() if word in KEPT}


def _names_the_option(key: str) -> bool:
    """Whether a key is an option's `name`, which the group sets; a model's name can be set."""
    group, _, name = key.partition(".")
    return name == "name" and group != "model"


def _mapping(properties: Schema, of_a_package: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "patternProperties": {OPTION_KEY: of_a_package},
        "additionalProperties": False,
    }


def _list(items: Schema, at_least: int = 0) -> Schema:
    return {"type": "array", "items": items} | ({"minItems": at_least} if at_least else {})


def _any_of(variants: list[Schema]) -> Schema:
    return {"anyOf": variants}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _untitled(node: Schema) -> Schema:
    """A schema without the titles and defaults that pydantic derives from names."""
    properties = {
        name: {word: value for word, value in child.items() if word not in ("title", "default")}
        for name, child in node["properties"].items()
    }
    return {word: v for word, v in node.items() if word not in ("title", "$defs")} | {
        "properties": properties
    }


if __name__ == "__main__":
    sys.stdout.write(text(shipped=True))
