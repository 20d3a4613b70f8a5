"""Fit the cost model of device=modeled."""

import argparse
from pathlib import Path

from kvscope.commands.command import argument, command, flag, path
from kvscope.errors import EXIT_DONE, BadInput


@command(
    ("results/experiments/* --out config/device/here.yaml", "--published"),
    path("runs", "a measured run", nargs="*"),
    flag("--published", "fit the published figures"),
    path("--out", "the device's file: config/device/NAME.yaml", metavar="FILE"),
    argument(
        "--predict",
        nargs="+",
        default=[],
        metavar="RUN",
        help="other measured runs of this device, whose passes are predicted",
    ),
    argument("--samples", type=int, default=20, metavar="N", help="of the bootstrap (default: 20)"),
)
def calibrate(given: argparse.Namespace) -> int:
    """Fit the cost model of device=modeled to measured runs, and write a fitted device.

    The fit has bootstrap intervals and the errors of runs that are left out. With --published it is
    made to Figures 3a, 3c, 4a and 8a of the paper.
    """
    from kvscope.analyse.calibration import calibrate
    from kvscope.analyse.calibration.predict import HEADING, predictions

    if given.published == bool(given.runs):
        raise BadInput("calibrate: give the directories of measured runs, or --published")
    if given.published and (given.out or given.predict):
        raise BadInput("calibrate --published: --out and --predict are for measured runs")
    if given.samples < 2:
        raise BadInput(f"calibrate: --samples is {given.samples} but must be 2 at least")
    if given.published:
        found = calibrate.calibrate_published(given.samples)
    else:
        found = calibrate.calibrate_runs(given.runs, given.samples)
    print("\n".join(found.lines()))
    if given.predict:
        print(f"\n{HEADING}")
        for one in predictions(found.fit.hardware, [Path(run) for run in given.predict]):
            print(one.line)
    if given.out:
        calibrate.write_device(found, given.out)
        print(given.out)
    return EXIT_DONE
