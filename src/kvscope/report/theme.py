"""The look of charts: one palette and one Vega-Lite configuration, for light and dark."""

from typing import Any

# Okabe and Ito's palette without yellow, which vanishes on white: distinct under every common
# colour blindness. On a dark screen the same hues, lighter.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6B6B6B", "#000000")
ON_DARK = ("#4FA9E0", "#F08342", "#2FBF95", "#E39BC4", "#F0B840", "#9AD4F5", "#A8A8A8", "#FFFFFF")
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")

# Colours with one meaning in all figures; visible on white and on a dark screen.
PREFILL, DECODE = "#E69F00", "#2F86C1"
KV_BLOCKS, KV_TOKENS, HOST_BLOCKS = "#1F76B8", "#6CC4F0", "#CC79A7"
RUNNING, WAITING = "#009E73", "#8A8A8A"
PREEMPTED, RESUMED, STALLED = "#D55E00", "#009E73", "#CC79A7"
NOTE, DIFFERENT = "#B0691F", "#D22F3A"
GREY = "#9AA1AB"

FONT = "Liberation Sans, Helvetica, Arial, sans-serif"


def config(dark: bool = False, background: str = "transparent") -> dict[str, Any]:
    """The Vega-Lite configuration of every chart."""
    ink, quiet, faint = (
        ("#e4e8ed", "#9aa6b4", "#2a323b") if dark else ("#1d2530", "#5b6675", "#e3e6ea")
    )
    return {
        "background": background,
        "font": FONT,
        "view": {"stroke": None},
        "concat": {"spacing": 22},
        "facet": {"spacing": 18},
        "axis": {
            "labelColor": quiet, "titleColor": quiet, "gridColor": faint, "domainColor": quiet,
            "tickColor": quiet, "titleFontWeight": "normal", "titleFontSize": 11,
            "labelFontSize": 10.5, "labelLimit": 190, "titlePadding": 6,
        },
        "axisX": {"grid": False, "labelFlush": False},
        "axisY": {"domain": False, "ticks": False},
        "title": {
            "anchor": "start", "frame": "bounds", "color": ink, "fontSize": 12, "offset": 8,
            "fontWeight": 600, "subtitleColor": quiet, "subtitleFontSize": 11,
        },
        "header": {
            "title": None, "labelColor": ink, "labelFontSize": 11.5, "labelFontWeight": 600,
            "labelAnchor": "start", "labelLimit": 330, "labelPadding": 4,
        },
        "legend": {
            "title": None, "orient": "bottom", "labelColor": ink, "labelFontSize": 11,
            "labelLimit": 0, "symbolLimit": 0, "columnPadding": 16, "rowPadding": 3,
        },
        "range": {"category": list(ON_DARK if dark else PALETTE), "symbol": list(SHAPES)},
        "rule": {"color": quiet},
        "text": {"color": quiet, "fontSize": 10.5},
        "line": {"strokeWidth": 1.6},
    }  # fmt: skip
