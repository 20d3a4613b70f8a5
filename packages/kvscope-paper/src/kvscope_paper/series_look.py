"""Look of the series in the paper's figures: equal in all of them, and apart in grey."""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from kvscope.api.figures import charts, theme

# Series that stand in one figure, in the order of the palette.
KNOWN = (
    ("recompute", "swap", "swap, pageable"),
    (
        "prefill first",
        "mixed",
        *(f"chunked, {tokens} tokens" for tokens in (4096, 2048, 1024, 512)),
    ),
    ("Yarn-Llama-2-7B", "Llama-3.1-8B", "OPT-13B"),
)
ALSO = {"swap, pinned": "swap"}  # which looks the same
DASHES = ([1, 0], [6, 2], [2, 2], [8, 2, 2, 2], [4, 4], [1, 3], [10, 3], [5, 1, 1, 1])
SHADES = (1.0, 0.75, 0.45, 0.95, 0.8, 0.45, 0.9, 0.6)  # opacity of bars
COLUMN = 336  # pixels of 1/96 inch across: one column of a paper
INK = "#1d2530"  # of our marks on bars, and of our lines on PALE ones
PALE = "#8FC7EA"
LINE: charts.Spec = {
    "symbolType": "stroke",
    "symbolSize": 300,
    "symbolStrokeWidth": 2,
}  # of a legend
BESIDE_PX = 56  # on the left of remarks and legends, which begin where the plots do
SYMBOL_PX = 28  # of a legend, beside a name


def ordered(names: Sequence[str]) -> list[str]:
    """The names with those of known series first, in their order."""
    places = {name: _known(name) for name in names}
    return sorted(names, key=lambda name: len(theme.PALETTE) if (n := places[name]) is None else n)


@dataclass(frozen=True)
class Look:
    """The channels that set the series of a figure apart.

    `names` are those of all its drawings, `shown` those of one, for its legend `across` pixels.
    """

    names: Sequence[str]
    shown: Sequence[str]
    across: int

    @property
    def many(self) -> bool:
        """True if there are more series than colours: then they run from dark to light."""
        return len(self.names) > len(theme.PALETTE)

    @property
    def colour(self) -> charts.Spec:
        """The colour of each."""
        scale: charts.Spec = {"domain": list(self.names)}
        if self.many:
            scale["scheme"] = {"name": "viridis", "extent": [0, 0.9]}
        else:
            scale["range"] = [theme.PALETTE[place] for place in _places(self.names)]
        return self._channel(scale)

    @property
    def line(self) -> charts.Spec:
        """The colour of each, with lines in the legend."""
        return self.colour | {"legend": self._legend(LINE)}

    @property
    def dash(self) -> charts.Spec:
        """The dashes of each line, where its colour does not tell in grey."""
        if self.many:
            return {}
        dashes = [DASHES[place] for place in _places(self.names)]
        return {"strokeDash": self._channel({"domain": list(self.names), "range": dashes}, LINE)}

    @property
    def shade(self) -> charts.Spec:
        """The opacity of each bar, which sets hues of one lightness apart."""
        if self.many:
            return {}
        shades = [SHADES[place] for place in _places(self.names)]
        scale = {"type": "ordinal", "domain": list(self.names), "range": shades}
        return {"opacity": self._channel(scale)}

    def _channel(self, scale: charts.Spec, symbol: charts.Spec | None = None) -> charts.Spec:
        return charts.text("colour", scale=scale, legend=self._legend(symbol))

    def _legend(self, symbol: charts.Spec | None = None) -> charts.Spec | None:
        """Legend with as many columns as fit; None for a single series."""
        if len(self.shown) < 2:
            return None
        each_px = SYMBOL_PX + charts.LETTER * max(map(len, self.shown))
        columns = max(1, min(len(self.shown), int((self.across - BESIDE_PX) // each_px)))
        return {"columns": columns, "values": list(self.shown)} | (symbol or {})


def remark_lines(remarks: Sequence[str], across: int) -> tuple[str, ...]:
    """Remarks above a figure of this many pixels, in lines that fit."""
    letters = round((across - BESIDE_PX) / charts.LETTER)
    return tuple(line for remark in remarks for line in wrap(remark, letters))


def _known(name: str) -> int | None:
    """The place of a known series in its group."""
    asked = ALSO.get(name, name)
    return next((group.index(asked) for group in KNOWN if asked in group), None)


def _places(names: Sequence[str]) -> list[int]:
    """The place of each series in the palette: its own if all are known, else by their order."""
    palette_places = [_known(name) for name in names]
    places = [place for place in palette_places if place is not None]
    return places if len({*places}) == len(names) else list(range(len(names)))
