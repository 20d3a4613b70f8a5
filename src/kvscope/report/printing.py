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
    """The images of each chart. KvscopeError if a process that draws them fails.

    A process draws FEW charts: what it needed for them goes with it. No more run than are cores.
    """
    if len(charts) < 2 * FEW:
        return [print_chart(chart) for chart in charts]
    cores = len(os.sched_getaffinity(0))
    batches = [charts[first : first + FEW] for first in range(0, len(charts), FEW)]
    with ThreadPoolExecutor(cores) as pool, processes.no_child_left():
        return [image for images in pool.map(_print_beside, batches) for image in images]


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
