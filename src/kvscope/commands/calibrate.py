"""Fit the cost model of device=modeled."""

import argparse
from pathlib import Path

from kvscope.commands.command import argument, command, flag, path
from kvscope.errors import EXIT_DONE, BadInput


@command(
    ("results/experiments/* --out config/device/here.yaml", "--published"),
    path("runs", "a measured run", nargs="*"),
    flag("--published", "fit the published figures"),
    path(
        "--out",
        "the device's file: config/device/NAME.yaml; with --published, one for the errors of "
        "figures that are left out",
        metavar="FILE",
    ),
    argument(
        "--predict",
        nargs="+",
        type=Path,
        default=[],
        metavar="RUN",
        help="other measured runs of this device, whose passes are predicted",
    ),
    argument("--samples", type=int, default=20, metavar="N", help="of the bootstrap (default: 20)"),
)
def calibrate(given: argparse.Namespace) -> int:
    """Fit the cost model of device=modeled to measured runs, and write a fitted device.

    The fit has bootstrap intervals and the errors of runs that are left out. Each run gets a
    prediction.json, which `kvscope report` shows; `speed` is how fast the machine was around that
    run, relative to the fitted ones. With --published the model is fitted to Figures 3a, 3c, 4a and
    8a of the paper.
    """
    from kvscope.analyse.calibration import calibrate, measured

    if given.published == bool(given.runs):
        raise BadInput("calibrate: give the directories of measured runs, or --published")
    if given.published and given.predict:
        raise BadInput("calibrate --published: --predict is for measured runs")
    if given.samples < 2:
        raise BadInput(f"calibrate: --samples is {given.samples} but must be 2 at least")
    if given.published:
        found = calibrate.calibrate_published(given.samples)
        print("\n".join(found.lines()))
        if given.out:
            calibrate.write_left_out(found, given.out)
            print(given.out)
        return EXIT_DONE
    measured.require_one_attention([*given.runs, *given.predict])
    found = calibrate.calibrate_runs(given.runs, given.samples)
    print("\n".join(found.lines()))
    print(f"\n{'passes of a run':66} {'passes':>6} {'median':>7} {'sum':>8} {'speed':>6}")
    for run, one in calibrate.write_predictions(found, given.runs, given.predict):
        which = "fitted" if one.fitted else "predicted"
        error = f"{one.median_error:7.1%} {one.ratio - 1:+8.1%}"
        speed = "" if one.speed is None else f"{one.speed:.2f}"
        print(f"{run.name:66} {one.passes:6,} {error} {speed:>6}   {which}")
    if given.out:
        calibrate.write_device(found, given.out)
        print(given.out)
    return EXIT_DONE
