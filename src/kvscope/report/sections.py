"""Sections of a study's page that packages add, between its charts and how it is made again.

A package registers a `Section` in the entry-point group `kvscope.section`, under the id that the
section has on the page.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from markupsafe import Markup

from kvscope.base import plugins
from kvscope.base.errors import BadInput, KvscopeError
from kvscope.base.quantities import plural
from kvscope.base.reading import describe_error
from kvscope.report.data import StudyData
from kvscope.report.pages import load_template
from kvscope.report.render import pack

GROUP = "kvscope.section"
OWN = (
    *("findings", "circumstances", "experiments", "charts", "timeline", "accesses", "predictions"),
    *("reproduce", "table", "filter", "filtered", "baseline", "configs", "differences", "vega"),
)
"""The ids of the page itself."""
LAST = 1000  # place of a section that names none


@dataclass(frozen=True)
class Section:
    """A section of the page: its heading, and the template of what stands below it.

    `template` is a file for Jinja. `context` gives its values for a study, or None where the study
    has nothing to show, and the page no such section. Among them may be data for a script:
    `{{ values | packed }}` in a `<script type="text/plain" id="…">`, which the page's function
    `unpack(element)` gives as JSON. `order` is the section's place among others. Every page has the
    files of `styles` and `scripts`, each once.
    """

    title: str
    template: Path
    context: Callable[[StudyData], Mapping[str, Any] | None]
    order: int = LAST
    styles: tuple[Path, ...] = ()
    scripts: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Shown:
    """A section that a study has: its id, its heading, its HTML."""

    name: str
    title: str
    body: Markup


def sections() -> dict[str, Section]:
    """The sections of all installed packages in their order; BadInput for one that cannot load."""
    found = {_checked(name): plugins.load(GROUP, name, Section) for name in plugins.names(GROUP)}
    return dict(sorted(found.items(), key=lambda named: (named[1].order, named[0])))


def _checked(name: str) -> str:
    """The name of a section; BadInput if it cannot be an id, or is one of the page's own."""
    if name in OWN or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise BadInput(
            f"section {name!r:.60} of {plugins.origin(GROUP, name)}: its name must be lower-case "
            f"letters, digits and _, and not one of {', '.join(OWN)}; rename or uninstall it"
        )
    return name


def shown_sections(study: StudyData) -> list[Shown]:
    """The sections that a study has something for; BadInput names the package of one that fails."""
    found = {name: _body(name, one, study) for name, one in sections().items()}
    return [Shown(name, sections()[name].title, body) for name, body in found.items() if body]


def _body(name: str, section: Section, study: StudyData) -> Markup | None:
    try:
        values = section.context(study)
        if values is None:
            return None
        template = load_template(section.template, plural=plural, packed=_packed)
        return Markup(template.render(**values))
    except KvscopeError:
        raise
    except Exception as error:
        package = plugins.origin(GROUP, name)
        raise BadInput(
            f"section {name} of {package} raised {describe_error(error)}; fix or uninstall its "
            "package"
        ) from error


def _packed(values: Any) -> str:
    return pack(orjson.dumps(values).decode())


def styles() -> Iterator[Path]:
    """The style sheets of all sections, each once."""
    yield from dict.fromkeys(path for one in sections().values() for path in one.styles)


def scripts() -> Iterator[Path]:
    """The scripts of all sections, each once."""
    yield from dict.fromkeys(path for one in sections().values() for path in one.scripts)
