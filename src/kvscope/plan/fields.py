"""Field types and the base class of all parts of a configuration."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    model_serializer,
)
from pydantic_core import PydanticCustomError

from kvscope.base.quantities import QUANTITY, parse_duration, parse_size

IMPOSSIBLE = "impossible"
# The forms of a value that is a number or a group of keys. They stand in pydantic's locations and
# in no dotted key, since no key has such a name.
NUMBER, RULE = FORMS = ("<number>", "<rule>")

GIB = 2**30

# Above every feasible experiment: they catch a typing error before it costs memory or hours.
MAX_NUMBER = 10**9
MAX_REQUESTS = 10**6
MAX_TOKENS = 10**9  # of all requests together
MAX_LENGTH = 2**24  # tokens of a request, or of a forward pass
MAX_REPEATS = 1000
MAX_THREADS = 4096


def _whole(value: Any) -> Any:
    """4.0 is 4, so that both have the same hash; 1.5, true and '4' are left to be refused."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def in_gib(value: Any) -> Any:
    """GiB of a size with a unit, as '80GB'; other values are left as they are."""
    return _quantity(value, lambda text: parse_size(text, "GiB") / GIB)


def in_seconds(value: Any) -> Any:
    """Seconds of a duration with a unit, as '2min'; other values are left as they are."""
    return _quantity(value, lambda text: parse_duration(text, or_0=True))


def _quantity(value: Any, parse: Callable[[str], float]) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return parse(value)
    except ValueError as error:
        raise PydanticCustomError(
            "quantity", "{expected}", {"expected": _expected(error)}
        ) from None


def _expected(error: ValueError) -> str:
    """The part EXPECTED of a sentence 'VALUE is not EXPECTED'."""
    return str(error).partition(" is not ")[2]


def as_number(key: str, value: Any) -> Any:
    """The value of a dotted key in the key's unit, if it is a size or duration with a unit.

    A text that is none is left for the key's own validation to refuse.
    """
    name = key.rpartition(".")[2]
    is_duration = name.endswith("_s") and not name.endswith("_per_s")
    convert = in_gib if name.split("_")[-1] == "gib" else in_seconds if is_duration else None
    try:
        return convert(value) if convert else value
    except PydanticCustomError:
        return value


def as_written(**bounds: float) -> WithJsonSchema:
    """The JSON Schema of a quantity: a number within bounds, or a text of a number and a unit."""
    return WithJsonSchema(
        {"anyOf": [{"type": "number", **bounds}, {"type": "string", "pattern": QUANTITY}]}
    )


Whole = Annotated[int, BeforeValidator(_whole)]
Count = Annotated[Whole, Field(ge=1, le=MAX_NUMBER)]
Requests = Annotated[Whole, Field(ge=1, le=MAX_REQUESTS)]
Tokens = Annotated[Whole, Field(ge=1, le=MAX_LENGTH)]
Real = Annotated[float, Field(allow_inf_nan=False)]
Gib = Annotated[
    Real, Field(gt=0, le=1e6), BeforeValidator(in_gib), as_written(exclusiveMinimum=0, maximum=1e6)
]
# From 0 on, as a time to think; its bounds are those of the key.
Pause = Annotated[Real, BeforeValidator(in_seconds)]
# Requests a second: one in three hours, at the least.
Rate = Annotated[Real, Field(ge=1e-4, le=1e6)]
Seconds = Annotated[Real, Field(gt=0), BeforeValidator(in_seconds), as_written(exclusiveMinimum=0)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$", max_length=60)]


def _sha256(value: str) -> str:
    if not re.fullmatch("[0-9a-f]{64}", value):
        raise PydanticCustomError("sha256", "a SHA-256 in 64 hexadecimal digits")
    return value


Sha256 = Annotated[str, AfterValidator(_sha256)]


@dataclass(frozen=True)
class Label:
    """The heading of a key on axes and in tables, and a phrase with its value ({}) for text."""

    title: str
    phrase: str = ""


class Part(BaseModel):
    """A part of an experiment: immutable, without unknown keys, without silent conversion.

    Exactly one of the keys `one_of` must be set; setting one drops the default of another. Planning
    sets a second one where `fills_in` maps the first to it.
    The keys `in_id` are part of an experiment's id even at their default.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    one_of: ClassVar[tuple[str, ...]] = ()
    fills_in: ClassVar[dict[str, str]] = {}
    in_id: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _without_nulls(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without the keys that are null by default and as set."""
        fields = type(self).model_fields
        values: dict[str, Any] = plain(self)
        return {k: v for k, v in values.items() if v is not None or fields[k].default is not None}


def impossible(sentence: str, *keys: str) -> PydanticCustomError:
    """Make the error for values that are invalid in combination; the user may change `keys`."""
    # The sentence travels in the context: pydantic would expand braces in the template.
    return PydanticCustomError(IMPOSSIBLE, "{sentence}", {"sentence": sentence, "keys": keys})
