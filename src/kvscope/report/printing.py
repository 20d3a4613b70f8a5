"""Charts in Vega-Lite as SVG, PDF and PNG, on all cores.

A process beside this one is `python -m kvscope.report.printing`: it reads a JSON list of charts
from its standard input and writes their images to its standard output, pickled.
"""

import json
import os
import pickle
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import vl_convert

from kvscope.base import processes
from kvscope.base.errors import KvscopeError
from kvscope.base.reading import last_line

PNG_SCALE = 2.0  # 192 dots an inch
FEW = 4  # charts that take no longer than the start of a process
Images = tuple[str, bytes, bytes]  # SVG, PDF, PNG


def print_chart(chart: str) -> Images:
    """The images of a chart with its data, in JSON; the same bytes for the same chart."""
    svg = vl_convert.vegalite_to_svg(chart)
    return svg, vl_convert.svg_to_pdf(svg), vl_convert.svg_to_png(svg, PNG_SCALE)


def print_charts(charts: Sequence[str]) -> list[Images]:
    """The images of each chart. KvscopeError if a process that draws them fails."""
    cores = min(len(os.sched_getaffinity(0)), len(charts) // FEW)
    if cores < 2:
        return [print_chart(chart) for chart in charts]
    images: list[Images | None] = [None] * len(charts)
    with ThreadPoolExecutor(cores) as pool, processes.no_child_left():
        shares = pool.map(_print_beside, [charts[first::cores] for first in range(cores)])
        for first, share in enumerate(shares):
            images[first::cores] = share
    return [image for image in images if image is not None]


def _print_beside(charts: Sequence[str]) -> list[Images]:
    done = processes.run(
        [sys.executable, "-P", "-m", __name__],  # -P: no module of the working directory
        input=json.dumps(charts).encode(),
        capture_output=True,
    )
    if done.returncode != 0:
        last = last_line(done.stderr.decode(errors="replace"))
        raise KvscopeError(
            f"the process that draws the figures ended with {done.returncode}: {last}"
        )
    images: list[Images] = pickle.loads(done.stdout)
    return images


def main() -> None:
    """Print the charts of standard input."""
    charts = json.load(sys.stdin)
    sys.stdout.buffer.write(pickle.dumps([print_chart(chart) for chart in charts]))


if __name__ == "__main__":
    main()
