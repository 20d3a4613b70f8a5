"""The question that a study asks: how the values of one key compare."""

from typing import Any

from pydantic import Field

from kvscope.plan.fields import Part

Value = str | bool | int | float


class Question(Part):
    """Comparison of the other values of `key` with `base`, all else being equal.

    But for the keys of `along`, which go with a value of the key: a number that one option is best
    with, say.
    """

    key: str
    base: Value
    along: list[str] = Field(default_factory=list)

    @property
    def keys(self) -> dict[str, Any]:
        """All keys it names."""
        return dict.fromkeys((self.key, *self.along))
