"""Errors of the A100's numbers for the published figures that they are fitted to."""

from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from kvscope.api.settings import documents, fields

FILE = Path(__file__).parent / "fitted.yaml"
HEADING = (
    "# Errors of the times of each fitted figure, and of a fit to the other figures. Made by\n"
    "# kvscope calibrate --published --out published/fitted.yaml\n"
)

Error = Annotated[fields.Real, Field(ge=0)]
Signed = Annotated[fields.Real, Field(gt=-1)]


class FittedFigure(fields.Part):
    """Errors of the times of a figure, as shares: predicted over published seconds less 1.

    `left_out` is the median error by a fit to the other figures, and `left_out_errors` are these
    errors, signed, in the order of the published values; both are null where the other figures do
    not tell of every number of the hardware that the figure's times depend on.
    """

    times: fields.Count
    median_error: Error
    largest_error: Error
    left_out: Error | None
    left_out_errors: list[Signed] | None


_Figures = TypeAdapter(dict[str, FittedFigure])


@cache
def fitted_figures() -> dict[str, FittedFigure]:
    """Each fitted figure by its number; BadInput if the file is damaged."""
    return _Figures.validate_python(documents.load_mapping(FILE))
