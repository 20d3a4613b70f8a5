"""The HTML templates of pages."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2


def load_template(path: Path, **filters: Callable[..., Any]) -> jinja2.Template:
    """The template in a file, with its filters; an undefined name in it is an error."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(path.parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= filters
    return environment.get_template(path.name)
