"""Pages of a study beside its report.

- `pages`: `Page`, which a package registers; `load_template` of Jinja, `styles` of all pages
- `render`: `print_figures` on paper, as PDF, PNG and SVG; `svg` of one
- `paper`: `PAPER`, the study of KV caching that pages cite
"""

from kvscope.report import pages, paper, render

__all__ = ["pages", "paper", "render"]
