"""Fit the cost model of device=modeled."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from kvscope.api.commands import EXIT_DONE, argument, arguments, command, flag, path
from kvscope.api.errors import BadInput
from kvscope.api.files import layout


@command(
    (
        "calibration-cpu --out config/device/here.yaml",
        "calibration-cpu --predict overflow-cpu",
        "results/experiments/* --out config/device/here.yaml",
        "--published",
    ),
    argument(
        "what",
        nargs="*",
        metavar="STUDY | DIR",
        help="planned studies, of which the complete runs are taken, or measured runs' directories",
    ),
    arguments.RESULTS_DIR,
    flag("--published", "fit the published times of an installed package"),
    path(
        "--out",
        "the device's file: config/device/NAME.yaml; with --published, one for the errors",
        metavar="FILE",
    ),
    argument(
        "--predict",
        nargs="+",
        default=[],
        metavar="STUDY | DIR",
        help="other measured runs of this device, whose passes are predicted",
    ),
    argument(
        "--samples",
        type=arguments.whole(1),
        default=20,
        metavar="N",
        help="of the bootstrap (default: 20)",
    ),
    order=120,
)
def calibrate(given: argparse.Namespace) -> int:
    """Fit the cost model of device=modeled to measured runs, and write a fitted device.

    The fit has bootstrap intervals and the errors of runs that are left out. Each run gets a
    prediction.json, which `kvscope report` shows; `speed` is how fast the machine was around that
    run, relative to the fitted ones. A run that is not valid is named, and used all the same. With
    --published the model is fitted to times that others published, which come with a package.
    """
    from kvscope_model.calibration import calibrate, measured

    if given.published == bool(given.what):
        raise BadInput("calibrate: give studies or directories of measured runs, or --published")
    if given.published and given.predict:
        raise BadInput("calibrate --published: --predict is for measured runs")
    if given.samples < 2:
        raise BadInput(f"calibrate: --samples is {given.samples} but must be 2 at least")
    if given.published:
        published = calibrate.published_times()
        result = published.calibrate(given.samples)
        print("\n".join(result.lines()))
        if given.out:
            published.write_errors(result, given.out)
            print(given.out)
        return EXIT_DONE
    fitted = _measured_runs(given.what, given.results)
    others = _measured_runs(given.predict, given.results)
    measured.require_measured([*fitted, *others])
    measured.require_one_attention([*fitted, *others])
    for doubt in measured.doubts([*fitted, *others]):
        print(f"kvscope: {doubt}", file=sys.stderr)
    result = calibrate.calibrate_runs(fitted, given.samples)
    print("\n".join(result.lines()))
    print(f"\n{'passes of a run':66} {'passes':>6} {'median':>7} {'sum':>8} {'speed':>6}")
    for run, prediction in calibrate.write_predictions(result, fitted, others):
        which = "fitted" if prediction.fitted else "predicted"
        error = f"{prediction.median_error:7.1%} {prediction.ratio - 1:+8.1%}"
        speed = "" if prediction.speed is None else f"{prediction.speed:.2f}"
        print(f"{run.name:66} {prediction.passes:6,} {error} {speed:>6}   {which}")
    if given.out:
        calibrate.write_device(result, given.out)
        print(given.out)
    return EXIT_DONE


def _measured_runs(words: Sequence[str], results: Path) -> list[Path]:
    """The runs that the words name: directories, and planned studies with their complete runs.

    A word with a slash in it is a directory, also where a study has the same name. BadInput names a
    word that is neither, and a study without a complete run.
    """
    planned = sorted(
        file.parent.name for file in results.glob(f"{layout.STUDIES}/*/{layout.MANIFEST}")
    )
    runs: list[Path] = []
    for word in words:
        if "/" not in word and word in planned:
            runs += _complete_runs(word, results)
        elif Path(word).is_dir():
            runs.append(Path(word))
        else:
            raise BadInput(
                f"calibrate: '{word}' is neither a planned study ({', '.join(planned) or 'none'} "
                f"in {results / layout.STUDIES}) nor a run's directory"
            )
    return list(dict.fromkeys(runs))


def _complete_runs(study: str, results: Path) -> list[Path]:
    """The complete runs of a planned study; how many are left out is printed."""
    from kvscope.api.plan import manifest
    from kvscope.api.tables import runfile

    ids = [entry["id"] for entry in manifest.read(study, results)["experiments"]]
    runs = {id_: layout.experiment_directory(results, id_) for id_ in ids}
    complete = [run for id_, run in runs.items() if runfile.is_complete(run, id_)]
    if not complete:
        raise BadInput(f"calibrate: no experiment of {study} is complete; run the study first")
    if left_out := len(runs) - len(complete):
        print(
            f"kvscope: {left_out} of {len(runs)} experiments of {study} are not complete and are "
            "left out",
            file=sys.stderr,
        )
    return complete
