"""How well the published figures that the A100's numbers are fitted on predict one another."""

from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from kvscope.plan import documents
from kvscope.plan.fields import Real

FILE = Path(__file__).parent / "left_out.yaml"
HEADING = (
    "# Median error of the times of a fitted figure by a fit to the other fitted figures. Made by\n"
    "# kvscope calibrate --published --out src/kvscope/plan/published/left_out.yaml\n"
)

_Errors = TypeAdapter(dict[str, Annotated[Real, Field(ge=0)]])


@cache
def left_out_errors() -> dict[str, float]:
    """The error of each fitted figure, as a share; BadInput if the file is damaged."""
    return _Errors.validate_python(documents.load_mapping(FILE))
