"""The strict building blocks of everything that a configuration may hold."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

IMPOSSIBLE = "impossible"


def _whole(value: Any) -> Any:
    """4.0 is 4, so that both hash alike; 1.5, true and '4' are left to be refused."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]
Count = Annotated[Whole, Field(ge=1)]
CountOrZero = Annotated[Whole, Field(ge=0)]
# More than any memory holds; beyond, arithmetic on sizes would lose its meaning.
Blocks = Annotated[Whole, Field(ge=1, le=10**9)]
Real = Annotated[float, Field(allow_inf_nan=False)]
Gib = Annotated[Real, Field(gt=0, le=1e6)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$", max_length=60)]


class Part(BaseModel):
    """A part of an experiment: immutable, no unknown keys, no silent conversion."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def impossible(sentence: str, *keys: str) -> PydanticCustomError:
    """The error of values that cannot go together; `keys` are those a user may change."""
    # The sentence travels in the context: pydantic would expand braces in the template.
    return PydanticCustomError(IMPOSSIBLE, "{sentence}", {"sentence": sentence, "keys": keys})
