"""Events of a recording's newest server, from the oldest segment left.

After records were dropped, or a segment is missing, a window begins anew: what is read is whole.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvscope.api.errors import BadInput
from kvscope_record.records import Event, Live, Segment
from kvscope_record.segments import read_segment, segment_paths


@dataclass
class Window:
    """A stretch of a recording without a gap."""

    facts: dict[str, Any]
    begin: Segment
    live: list[Live] = field(default_factory=list)  # the requests that were there when it began
    events: list[Event] = field(default_factory=list)  # without segments, and what is live at them
    notes: list[str] = field(default_factory=list)  # what is not in it, a sentence each


def recorded_segments(directory: Path) -> list[Path]:
    """Segments of a recording's directory, oldest first; BadInput if there are none."""
    if not (paths := segment_paths(directory)):
        ranks = sorted(path.parent.name for path in directory.glob("rank*/segment-*"))
        hint = f"; it has one for each rank: {', '.join(dict.fromkeys(ranks))}" if ranks else ""
        raise BadInput(f"{directory}: no recording is there{hint}")
    return paths


def read_window(directory: Path) -> Window:
    """Window of a recording's directory; BadInput if it is empty, or a file is damaged."""
    paths = recorded_segments(directory)
    window: Window | None = None
    earlier, gaps = set(), 0
    last: Segment | None = None
    for path in paths:
        for event in read_segment(path):
            if isinstance(event, Segment):
                if window is None or not _follows(last, event):
                    if last is not None and last.facts["recording"] == event.facts["recording"]:
                        gaps += 1
                    elif last is not None:
                        earlier.add(last.facts["recording"])
                        gaps = 0
                    window = Window(event.facts, event)
                last, beginning = event, event is window.begin
            elif window is None:
                raise BadInput(f"{path}: does not begin as a segment of a recording")
            elif not isinstance(event, Live):
                window.events.append(event)
            elif beginning:
                window.live.append(event)
    if window is None:
        raise BadInput(f"{directory}: nothing has been recorded there yet")
    if earlier:
        window.notes.append(
            f"{len(earlier)} earlier recording(s) in the directory are left out; each server "
            "should have a directory of its own"
        )
    if gaps:
        window.notes.append(
            "records were dropped, as the writer could not keep up; what is shown begins after that"
        )
    if window.begin.step:
        window.notes.append(
            f"passes before {window.begin.step} are no longer in the files: of "
            f"{len(window.live)} request(s) only a part is shown"
        )
    return window


def _follows(last: Segment | None, event: Segment) -> bool:
    return (
        last is not None
        and last.facts["recording"] == event.facts["recording"]
        and last.number + 1 == event.number
        and last.dropped == event.dropped
    )
