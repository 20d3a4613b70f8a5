"""Figures as files and as parts of a page, all from the same declarations."""

import base64
import os
import re
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
import vl_convert

from kvscope.base.errors import KvscopeError
from kvscope.base.files import atomic_path, write_text
from kvscope.report import theme
from kvscope.report.figures.figure import Drawing, Spec
from kvscope.report.printing import print_chart, print_charts

LARGE_SVG = 100_000  # bytes; above it, a PNG of 96 dots an inch may be smaller
# What an image needs no longer once it is drawn: roles and labels of its marks.
_UNSEEN = re.compile(r' (?:aria-[a-z]+|role|pointer-events)="[^"]*"')
_AS_IT_IS = " <>/='():;,+-.!?*@_$[]|"  # characters of a data URL that need no escape
_WIDTH = re.compile(r'width="(\d+)')
_TAG = re.compile(r"<[^>]*>")
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}(?:e-?\d+)?")


@dataclass(frozen=True)
class Printed:
    """A figure as printed: the bytes of the PDF and of the PNG, and the SVG they are made of."""

    svg: str
    pdf: bytes
    png: bytes

    def write(self, directory: Path, name: str) -> None:
        """Write NAME.pdf and NAME.png."""
        for suffix, content in (("pdf", self.pdf), ("png", self.png)):
            with atomic_path(directory / f"{name}.{suffix}") as temporary:
                temporary.write_bytes(content)

    @property
    def width_px(self) -> int:
        """Width in pixels of 1/96 inch."""
        match = _WIDTH.search(self.svg)
        assert match
        return int(match[1])

    @property
    def url(self) -> str:
        """A data URL for the page: the SVG, drawn to a tenth of a pixel, or a smaller PNG.

        It has no character that HTML reserves in a double-quoted attribute.
        """
        small = _TAG.sub(_in_tenths, _UNSEEN.sub("", self.svg))
        text = small.replace("'", "&apos;").replace('"', "'")
        url = f"data:image/svg+xml,{quote(text, safe=_AS_IT_IS)}"
        if len(small) <= LARGE_SVG:
            return url
        png = f"data:image/png;base64,{_base64(vl_convert.svg_to_png(small, scale=1))}"
        return min(url, png, key=len)


def _in_tenths(tag: re.Match[str]) -> str:
    return _LONG_NUMBER.sub(_tenth, tag[0])


def _tenth(number: re.Match[str]) -> str:
    return f"{float(number[0]):.1f}".removesuffix(".0")


def print_figures(drawn: Mapping[str, Drawing]) -> dict[str, Printed]:
    """The first view of each on white paper, by name."""
    images = print_charts([_for_print(drawing) for drawing in drawn.values()])
    return {name: Printed(*image) for name, image in zip(drawn, images, strict=True)}


def print_figure(drawing: Drawing) -> Printed:
    """The first view on white paper."""
    return Printed(*print_chart(_for_print(drawing)))


def svg(drawing: Drawing) -> str:
    """The first view on white paper as SVG; the same bytes for the same data."""
    image: str = vl_convert.vegalite_to_svg(_for_print(drawing))
    return image


def _for_print(drawing: Drawing) -> str:
    """The first view in Vega-Lite with its data, for white paper."""
    view = drawing.views[0]
    spec = specification(view.chart, (*view.remarks, *drawing.remarks))
    spec["datasets"] = {name: frame.to_dict("records") for name, frame in view.data.items()}
    spec["config"] = theme.config(background="white")
    return _json(spec)


def pack(text: str) -> str:
    """Text for a script element of the page: compressed (zlib), then base64."""
    return _base64(zlib.compress(text.encode(), 9))


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def for_page(drawing: Drawing) -> str:
    """Data for the page's script, as JSON: `specs`, `tables` (columns) and `views` of them.

    Views that share a specification or a table refer to the same one.
    """
    charts = {id(view.chart): (view.chart, view.remarks) for view in drawing.views}
    frames = {id(frame): frame for view in drawing.views for frame in view.data.values()}
    chart_place = {key: place for place, key in enumerate(charts)}
    table_place = {key: place for place, key in enumerate(frames)}
    content = {
        "label_px": drawing.label_px,
        "views": [
            {
                "choice": view.choice,
                "spec": chart_place[id(view.chart)],
                "data": {name: table_place[id(frame)] for name, frame in view.data.items()},
                "note": view.note,
            }
            for view in drawing.views
        ],
        "specs": [
            specification(chart, (*remarks, *drawing.remarks)) for chart, remarks in charts.values()
        ],
        "tables": [frame.to_dict("list") for frame in frames.values()],
    }
    return _json(content)


def specification(chart: Spec, remarks: tuple[str, ...] = ()) -> Spec:
    """The chart with the remarks above it, in Vega-Lite, without data or configuration."""
    note = {"fontSize": 10.5, "fontWeight": "normal", "color": theme.NOTE, "offset": 10}
    return chart | ({"title": {"text": list(remarks), **note}} if remarks else {})


@cache
def scripts() -> str:
    """Vega, Vega-Lite and Vega-Embed, which the page needs beside its own script.

    To bundle them takes seconds, so they are kept in the user's cache, by vl-convert's version.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    path = home / "kvscope" / f"vega-{version('vl-convert-python')}.js"
    with suppress(OSError):  # not there yet, or a home that cannot be read
        return path.read_text(encoding="utf-8")
    bundle: str = vl_convert.javascript_bundle(None)  # type: ignore[arg-type]  # its stub is wrong
    with suppress(KvscopeError):
        if home.is_absolute():  # a user without a home has none
            write_text(path, bundle)
    return bundle


def _json(value: Any) -> str:
    """Compact JSON; NaN is null."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY).decode()
