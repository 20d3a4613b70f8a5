"""Converts validation errors to one sentence: key, value, allowed values, place of the remedy."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from kvscope.base.errors import BadInput
from kvscope.base.reading import describe_error
from kvscope.plan import registry
from kvscope.plan.fields import FORMS, IMPOSSIBLE, Part
from kvscope.plan.option import Option
from kvscope.plan.wording import format_value
from kvscope.plan.wording import suggestion as suggestion

# Maps a dotted key to the place where its value is written, in words.
Origin = Callable[[str], str]

ALLOWED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "literal_error": "{expected}",
    "string_pattern_mismatch": "lower-case letters, digits, '.' and '-'",
    "string_too_long": "at most {max_length} characters",
    "list_type": "a list",
    "dict_type": "a group of keys",
    "too_short": "one or more of them",
    "model_type": "a group of keys",
    "model_attributes_type": "a group of keys",
}


def validation_message(
    schema: type[Part], error: ValidationError, origin: Origin, value: Any = None
) -> BadInput:
    """Make a BadInput of the first error that pydantic found in `value`, validated by `schema`."""
    errors = error.errors(include_url=False)
    # An unknown key takes precedence: a misspelt key is also reported as a missing one.
    first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    kind, context = first["type"], first.get("ctx", {})
    if kind == IMPOSSIBLE:
        return BadInput(f"{context['sentence']}; {_describe_places(context['keys'], origin)}")
    key, holder, members = _locate(schema, first["loc"], value)
    if kind == "extra_forbidden":
        return BadInput(
            f"{key} ({origin(key)}) is not a key{_known_keys(schema, key, holder, value)}"
        )
    if kind == "missing":
        return BadInput(f"{key} is missing ({origin(key)})")
    if kind.startswith("union_tag"):
        discriminator = context["discriminator"].strip("'")
        key = f"{key}.{discriminator}"
        tags = ", ".join(tag for member in members for tag in _tags(member))
        tag = format_value(context.get("tag"))
        return BadInput(f"{key} is {tag} ({origin(key)}) but must be one of {tags}")
    if "error" in context:  # a ValueError or AssertionError of the class itself
        group = str(first["loc"][0])
        origin_of_class = registry.package_origin(group, value[group]["name"]) or "kvscope"
        return BadInput(
            f"{key} is {format_value(first['input'])} ({origin(key)}), which {origin_of_class} "
            f"refuses: {describe_error(context['error'])}"
        )
    allowed = ALLOWED[kind].format(**context) if kind in ALLOWED else first["msg"]
    return BadInput(
        f"{key} is {format_value(first['input'])} ({origin(key)}) but must be {allowed}"
    )


def _describe_places(keys: Iterable[str], origin: Origin) -> str:
    """'change a (from x) or b (from y)'."""
    return "change " + " or ".join(f"{key} ({origin(key)})" for key in keys)


def _known_keys(schema: type[Part], key: str, holder: type[Part] | None, value: Any) -> str:
    """' of workload=zipf (did you mean …?); the keys there are …'."""
    if holder is None:
        return ""
    option = issubclass(holder, Option)  # whose section is never in another
    group = key.partition(".")[0] if option else key.rpartition(".")[0]
    keys = [f"{group}.{name}" if group else name for name in holder.model_fields]
    tags = {value[group]["name"]} if option else _tags(holder)
    options = "".join(f" of {group}={tag}" for tag in tags)
    hint = "" if key in all_keys(schema) else suggestion(key, keys)
    return f"{options}{hint}; the keys there are {', '.join(keys)}"


def all_keys(schema: type[Part]) -> list[str]:
    """Every dotted key of a schema, including all members of its unions."""
    return list(dict.fromkeys(key for key, _ in _fields(schema)))


def mapping_keys(schema: type[Part]) -> list[str]:
    """The dotted keys whose values are mappings of any keys, such as device.constants."""
    keys = (key for key, field in _fields(schema) if get_origin(field.annotation) is dict)
    return list(dict.fromkeys(keys))


def _fields(schema: type[Part], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in schema.model_fields.items():
        yield prefix + name, field
        for member in part_classes(field):
            yield from _fields(member, f"{prefix}{name}.")


def _locate(
    schema: type[Part], location: tuple[int | str, ...], value: Any
) -> tuple[str, type[Part] | None, Sequence[type[Part]]]:
    """The dotted key of pydantic's location, the class that has the key, and the key's own classes.

    A location also names members of unions, which are not part of the key.
    """
    names: list[str] = []
    classes: Sequence[type[Part]] = [schema]
    holder: type[Part] | None = None
    for step in location:
        if step in FORMS:
            continue
        chosen = [c for c in classes if len(classes) > 1 and step in (*_tags(c), _tag(c))]
        if chosen:
            classes = chosen
            continue
        names.append(str(step))
        if isinstance(step, int):
            continue  # an item of a list is of the list's class
        holder = classes[0] if classes else None
        field = holder.model_fields.get(str(step)) if holder else None
        value = value.get(step) if isinstance(value, dict) else None
        classes = part_classes(field, value) if field else []
    return ".".join(names), holder, classes


def part_classes(field: FieldInfo, value: Any = None) -> Sequence[type[Part]]:
    """The classes that a field may hold; if `value` has a name, only the class of that name."""
    return registry.option_classes(field, value) or _members(field.annotation)


def _members(annotation: Any) -> list[type[Part]]:
    """The pydantic classes that a field's annotation allows."""
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return [annotation]
    if get_origin(annotation) is Literal:
        return []
    return [member for part in get_args(annotation) for member in _members(part)]


def _tag(model: type[Part]) -> str:
    """The tag of a class without a constant field: its name in lower case."""
    return model.__name__.lower()


def _tags(model: type[Part]) -> set[Any]:
    """The constants among a class's fields, which discriminate the members of a union."""
    fields = model.model_fields.values()
    literals = (get_args(f.annotation) for f in fields if get_origin(f.annotation) is Literal)
    return {values[0] for values in literals if len(values) == 1}
