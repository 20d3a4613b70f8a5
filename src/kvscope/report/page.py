"""The page of a study: one self-contained HTML file, which is a list of sections."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from markupsafe import Markup

import kvscope
from kvscope.base.files import write_text
from kvscope.report import theme
from kvscope.report.pages import load_template
from kvscope.report.render import pack, scripts
from kvscope.report.section import Report, Section, show

PAGE = "report.html"
HERE = Path(__file__).parent
TEMPLATE = HERE / "report.html.j2"
SCRIPTS = (HERE / "address.js", HERE / "charts.js")
STYLES, CLOSING = HERE / "report.css", HERE / "closing.css"  # sections have theirs between these


def write_page(report: Report, sections: Mapping[str, Section]) -> Path:
    """Write the page that has these sections, by their ids; give its path."""
    shown = [show(name, section, report) for name, section in sections.items()]
    styles = (path for item in sections.values() for path in item.styles)
    extra = (path for item in sections.values() for path in item.scripts)
    html = load_template(TEMPLATE).render(
        study=report.study,
        version=kvscope.__version__,
        shown=[item for item in shown if item],
        styles=Markup("\n").join(_read((STYLES, *styles, CLOSING))),
        configs=[theme.config(), theme.config(dark=True)],
        vega=pack(scripts()),
        scripts=_read((*SCRIPTS, *extra)),
    )
    path = report.place / PAGE
    write_text(path, html)
    return path


def _read(paths: Iterable[Path]) -> list[Markup]:
    """Style sheets or scripts as they are, each once."""
    return [Markup(path.read_text(encoding="utf-8")) for path in dict.fromkeys(paths)]
