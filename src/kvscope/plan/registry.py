"""The registry of options that are classes, of kvscope and of other installed packages.

A package registers one as an entry point, in its pyproject.toml:

    [project.entry-points."kvscope.overflow"]
    my_policy = "my_package.my_module:MyPolicy"
"""

import traceback
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from kvscope.base import plugins
from kvscope.base.errors import BadInput
from kvscope.base.reading import describe_error
from kvscope.plan.device import Device
from kvscope.plan.fields import Label, impossible
from kvscope.plan.option import Option
from kvscope.plan.policy import Batching, Overflow
from kvscope.plan.vocabulary import KINDS as KINDS
from kvscope.plan.vocabulary import entry_point_group
from kvscope.plan.wording import but_one_of
from kvscope.plan.workload import Workload

BASES: dict[str, type[Option]] = dict(
    zip(KINDS, (Device, Workload, Batching, Overflow), strict=True)
)


@cache
def find_registered(kind: str) -> dict[str, EntryPoint]:
    """The entry points of one kind of option by name, without loading them.

    BadInput if two packages register different options under one name.
    """
    group = entry_point_group(kind)
    return {name: plugins.find(group, name) for name in plugins.names(group)}


def package_origin(kind: str, name: str) -> str | None:
    """The origin of another package's option, 'long-swap 0.1, long_swap:LongSwap'; None if own."""
    return plugins.origin_of(find_registered(kind)[name])


def load(kind: str, name: str) -> type[Option]:
    """Load the class of an option; BadInput if it is unknown, broken, or of a wrong class."""
    if name not in find_registered(kind):
        raise BadInput(unknown_option(kind, name))
    point = find_registered(kind)[name]
    try:
        option = point.load()
    except (Exception, SystemExit) as error:  # whatever a module of another package raises
        raise BadInput(
            f"{kind}={name} cannot be loaded from {package_origin(kind, name) or point.value} "
            f"({describe_error(error)}); fix or uninstall its package"
        ) from error
    base = BASES[kind]
    if not (isinstance(option, type) and issubclass(option, base)):
        raise BadInput(
            f"{kind}={name} is {point.value}, which must be a subclass of "
            f"{base.__module__}.{base.__name__}"
        )
    unset = (name for name in base.__class_vars__ if not hasattr(option, name))
    if lacking := sorted({*option.__abstractmethods__, *unset}):
        raise BadInput(
            f"{kind}={name} is {point.value}, which lacks {', '.join(lacking)} of "
            f"{base.__module__}.{base.__name__}"
        )
    return option


def fault_of_option(error: BaseException) -> str | None:
    """The message for an error that another package's option raised; None for any other error.

    It is the option's error if it was raised in a method of the option, or in what that called.
    """
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        owner = frame.f_locals.get("self", frame.f_locals.get("cls"))
        if named := _name_of(owner if isinstance(owner, type) else type(owner)):
            kind, name = named
            return (
                f"{kind}={name} of {package_origin(kind, name)} raised {describe_error(error)} "
                f"({frame.f_code.co_filename}:{line}); fix or uninstall its package"
            )
    return None


def _name_of(option: type) -> tuple[str, str] | None:
    """Kind and name of another package's option by its class."""
    if not issubclass(option, Option):
        return None
    names = ((kind, name) for kind in KINDS for name in find_registered(kind))
    others = (named for named in names if package_origin(*named))
    return next((named for named in others if load_all(named[0]).get(named[1]) is option), None)


@cache
def load_all(kind: str) -> dict[str, type[Option]]:
    """The classes of one kind by name, without those that cannot be loaded."""
    options = {}
    for name in find_registered(kind):
        try:
            options[name] = load(kind, name)
        except BadInput:
            continue  # the experiments that name it are refused
    return options


@cache
def label(key: str) -> Label | None:
    """The label that an option's class gives to a dotted key; None without a label."""
    kind, _, name = key.partition(".")
    options = load_all(kind).values() if kind in KINDS else ()
    fields = [option.model_fields[name] for option in options if name in option.model_fields]
    marks = (mark for field in fields for mark in field.metadata if isinstance(mark, Label))
    return next(marks, None)


def unknown_option(kind: str, name: object) -> str:
    """The message for an unknown option, with the known options."""
    advice = but_one_of(kind, name, sorted(find_registered(kind)))
    return (
        f"{kind}.name is {name!r:.60}{advice}, or one that an installed package registers under "
        f"{entry_point_group(kind)!r}"
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
    """The classes of a field with `OneOf`, or that which `value` names; None for other fields."""
    for mark in field.metadata:
        if isinstance(mark, OneOf):
            name = value.get("name") if isinstance(value, dict) else None
            if isinstance(name, str) and name in find_registered(mark.kind):
                return [load(mark.kind, name)]
            return list(load_all(mark.kind).values())
    return None
