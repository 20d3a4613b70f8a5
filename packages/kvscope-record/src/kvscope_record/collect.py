"""A recording becomes a run's directory: its host tables and run.json, beside the segments."""

from pathlib import Path
from typing import Any

from kvscope.api.collecting import foreign
from kvscope.api.files import files, reading
from kvscope.api.machine import __version__
from kvscope.api.tables import evidence, runfile, tables
from kvscope.api.words import time_sources
from kvscope_record import replayed
from kvscope_record.stretch import NEWEST
from kvscope_record.window import Window, read_window


def collect_recording(directory: Path, stretch: foreign.Stretch = NEWEST) -> list[str]:
    """Write the host tables of a recording and its run.json into its directory.

    Returns what is not in them, a sentence each. The server may be alive: the tables are of what
    was recorded until now. BadInput if the recording is damaged or holds no pass.
    """
    # Records have no types, and may not fit together.
    with reading.refusing(directory, "a recording"):
        window = read_window(directory, stretch)
        replay = replayed.read(window)
        frames, batch = replayed.tables_of(replay)
        facts = _facts(directory, replay)
    files.remove(directory / runfile.RUN_FILE)  # no record vouches for tables while they change
    for table in {*tables.HOST_TABLES} - frames.keys() - {tables.BATCH}:
        files.remove(directory / table.file)
    with reading.refusing(directory, "a recording"):
        tables.write_parts(tables.BATCH, batch, directory / tables.BATCH.file)
        while frames:  # one at a time, as they are large
            table, rows = frames.popitem()
            tables.write(table, rows, directory / table.file)
    runfile.write_run(directory, facts | {"files": runfile.file_records(directory)})
    return window.notes


def _profiler(directory: Path, window: Window) -> dict[str, Any]:
    """Profiler of a recording as in run.json, with the reason if its data are not used."""
    export = directory / runfile.NSYS_EXPORT
    if not export.exists():
        return {"requested": "none", "used": "none", "reason": None}
    reason, name = None, runfile.NSYS_EXPORT
    if export.stat().st_mtime_ns < window.begin.utc_ns:
        reason = f"{name} is of an earlier server"
    elif window.begin.step or window.gaps:
        reason = f"{name} numbers passes from the server's first, and not all are in the tables"
    if reason:
        window.notes.append(f"profiler: {reason}; it is left out")
    return {"requested": "nsys", "used": "none" if reason else "nsys", "reason": reason}


def _facts(directory: Path, replay: replayed.Replayed) -> dict[str, Any]:
    facts, begin = replay.window.facts, replay.window.begin
    groups = replay.kv_groups
    server = facts | {
        "notes": replay.window.notes,
        "overlapping": replay.overlapping,
        "first_step": begin.step,
        "session": replay.window.session,
        "missing": [gap.sentence for gap in replay.window.gaps],
    }
    return {
        "experiment_id": f"recording-{facts['recording']}",
        "status": runfile.COMPLETE,
        "reason": None,
        "time_source": facts.get("time_source", time_sources.MEASURED),
        "versions": {"kvscope": __version__, "vllm": facts["vllm"]},
        "clock": {
            "run_start_monotonic_ns": begin.time_ns,
            "run_start_utc_ns": begin.utc_ns,
            "repeats": [
                {
                    "repeat": 0,
                    "start_ns": replay.origin_ns - begin.time_ns,
                    "duration_s": replayed.duration_s(replay),
                }
            ],
        },
        "engine": {
            "kv_blocks_total": facts["kv_blocks_total"],
            "block_size": facts["block_size"],
            "block_bytes": groups[0].block_bytes,
            "layers": sum(group.layers for group in groups),
            "device": facts["device"],
            "times_layers": False,
        },
        "profiler": _profiler(directory, replay.window),
        "evidence": sorted(evidence.of_recording(server)),
        runfile.RECORDED: server,
    }
