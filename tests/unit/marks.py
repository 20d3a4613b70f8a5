"""The marks of a chart that was drawn as SVG."""

import re

MARKS = re.compile(r'<g class="mark-(\w+) role-mark[^"]*"[^>]*>(.*?)</g>', re.DOTALL)


def marks_of(svg: str) -> int:
    """How many marks there are: not axes, legends, titles."""
    return sum(content.count("<path") for kind, content in MARKS.findall(svg) if kind != "group")
