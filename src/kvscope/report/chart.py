"""A chart on a page: its image, its controls, its data for the page's script."""

from pathlib import Path

from markupsafe import Markup

from kvscope.report.figures.figure import Drawing
from kvscope.report.pages import load_template
from kvscope.report.render import Printed, for_page, pack

TEMPLATE = Path(__file__).parent / "chart.html.j2"


def chart(name: str, title: str, caption: str, drawing: Drawing, printed: Printed) -> Markup:
    """HTML of a chart; `name` is its own on the page."""
    html = load_template(TEMPLATE).render(
        name=name,
        title=title,
        caption=caption,
        headings=drawing.headings if len(drawing.views) > 1 else (),
        data=pack(for_page(drawing)),
        image=Markup(printed.url),
    )
    return Markup(html)
