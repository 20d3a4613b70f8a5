"""The registry of options that are classes, of kvscope and of other installed packages.

A package registers one as an entry point, in its pyproject.toml:

    [project.entry-points."kvscope.overflow"]
    my_policy = "my_package.my_module:MyPolicy"
"""

from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from kvscope.errors import BadInput
from kvscope.plan.device import Device
from kvscope.plan.fields import Label, impossible
from kvscope.plan.option import Option
from kvscope.plan.policy import Batching, Overflow
from kvscope.plan.workload import Workload

BASES: dict[str, type[Option]] = {
    "device": Device,
    "workload": Workload,
    "batching": Batching,
    "overflow": Overflow,
}
KINDS = tuple(BASES)


def entry_point_group(kind: str) -> str:
    """The entry-point group of a kind of option."""
    return f"kvscope.{kind}"


@cache
def find_registered(kind: str) -> dict[str, EntryPoint]:
    """The entry points of one kind of option by name, without loading them.

    BadInput if two packages register different options under one name.
    """
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=entry_point_group(kind)):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            raise BadInput(
                f"{kind}={point.name} is registered twice, as {other.value} and as {point.value}; "
                f"uninstall one of the packages or rename its {kind}"
            )
    return found


def package_origin(kind: str, name: str) -> str | None:
    """The origin of another package's option, 'long-swap 0.1, long_swap:LongSwap'; None if own."""
    point = find_registered(kind)[name]
    if point.dist is None or point.dist.name == "kvscope":
        return None
    return f"{point.dist.name} {point.dist.version}, {point.value}"


def load(kind: str, name: str) -> type[Option]:
    """Load the class of an option; BadInput if it is unknown, broken, or of a wrong class."""
    if name not in find_registered(kind):
        raise BadInput(unknown_option(kind, name))
    point = find_registered(kind)[name]
    try:
        found = point.load()
    except Exception as error:  # whatever a module of another package raises
        raise BadInput(
            f"{kind}={name} cannot be loaded from {point.value} ({error}); fix or uninstall "
            "its package"
        ) from error
    base = BASES[kind]
    if not (isinstance(found, type) and issubclass(found, base)):
        raise BadInput(
            f"{kind}={name} is {point.value}, which must be a subclass of "
            f"{base.__module__}.{base.__name__}"
        )
    return found


@cache
def load_all(kind: str) -> dict[str, type[Option]]:
    """The classes of one kind by name, without those that cannot be loaded."""
    found = {}
    for name in find_registered(kind):
        try:
            found[name] = load(kind, name)
        except BadInput:
            continue  # the experiments that name it are refused
    return found


@cache
def label(key: str) -> Label | None:
    """The label that an option's class gives to a dotted key; None without one."""
    kind, _, name = key.partition(".")
    options = load_all(kind).values() if kind in KINDS else ()
    fields = [option.model_fields[name] for option in options if name in option.model_fields]
    marks = (mark for field in fields for mark in field.metadata if isinstance(mark, Label))
    return next(marks, None)


def unknown_option(kind: str, name: object) -> str:
    """The message for an unknown option, with the known ones."""
    known = ", ".join(sorted(find_registered(kind)))
    return (
        f"{kind}.name is {name!r:.60} but must be one of {known}, or one that an installed package "
        f"registers under {entry_point_group(kind)!r}"
    )


@dataclass(frozen=True)
class OneOf:
    """Annotation of a field that holds an option of one kind; its `name` selects the class."""

    kind: str

    def __get_pydantic_core_schema__(self, *_: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.validate)

    def __get_pydantic_json_schema__(self, *_: Any) -> dict[str, Any]:
        return {}  # any: plan.schema has the keys of kvscope's own classes

    def validate(self, value: Any) -> Option:
        """Make an option of plain values; pydantic's errors if its class refuses them."""
        if isinstance(value, BASES[self.kind]):
            return value
        if not isinstance(value, dict):
            raise PydanticKnownError("dict_type")
        name = value.get("name")
        if not isinstance(name, str) or name not in find_registered(self.kind):
            raise impossible(unknown_option(self.kind, name), self.kind)
        return load(self.kind, name).model_validate(value)


def option_classes(field: FieldInfo, value: Any = None) -> list[type[Option]] | None:
    """The classes of a field with `OneOf`, or the one that `value` names; None for other fields."""
    for mark in field.metadata:
        if isinstance(mark, OneOf):
            name = value.get("name") if isinstance(value, dict) else None
            if isinstance(name, str) and name in find_registered(mark.kind):
                return [load(mark.kind, name)]
            return list(load_all(mark.kind).values())
    return None
