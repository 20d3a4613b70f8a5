"""Sessions of a recording's directory: one for each server that recorded there, in turn."""

from dataclasses import dataclass, field
from pathlib import Path

from kvscope.api.errors import BadInput
from kvscope_record import frames
from kvscope_record.records import Closed
from kvscope_record.segments import require_readable, segment_paths


@dataclass
class Session:
    """The segments of a server, in the order in which they were written."""

    number: int
    recording: int
    segments: dict[int, tuple[Path, frames.Header]] = field(default_factory=dict)  # by number
    again: list[Path] = field(default_factory=list)  # files of a segment that another file has

    @property
    def paths(self) -> list[Path]:
        """Its files."""
        return [path for path, _ in self.segments.values()]

    @property
    def began_utc_ns(self) -> int:
        """The time of day of the oldest frame that is left."""
        header = next(iter(self.segments.values()))[1]
        return header.first_ns + header.to_utc_ns

    def last_frame(self) -> frames.Frame:
        """The newest frame that is whole."""
        return [*frames.frames(self.paths[-1])][-1]

    def closed(self) -> bool:
        """True if the server ended the recording, rather than being killed."""
        events = self.last_frame().events() or ()
        return any(isinstance(event, Closed) for event in events)


def sessions_of(directory: Path) -> list[Session]:
    """Sessions in a recording's directory, oldest first; BadInput if there are no segments.

    Segments are put in order by what is in them, whatever their files are called.
    """
    sessions: dict[tuple[int, int], Session] = {}
    for path in recorded_segments(directory):
        require_readable(path)
        if (frame := next(frames.frames(path), None)) is None:
            continue
        header = frame.header
        key = header.session, header.recording
        session = sessions.setdefault(key, Session(*key))
        if header.segment in session.segments:
            session.again.append(path)
        else:
            session.segments[header.segment] = path, header
    for session in sessions.values():
        session.segments = dict(sorted(session.segments.items()))
    if not sessions and (written := [path for path in segment_paths(directory) if _size(path)]):
        raise BadInput(f"{written[0]}: not readable as a segment of a recording (no whole frame)")
    return sorted(sessions.values(), key=lambda one: (one.number, one.began_utc_ns))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def recorded_segments(directory: Path) -> list[Path]:
    """Segments of a recording's directory, oldest first; BadInput if there are none."""
    if not (paths := segment_paths(directory)):
        ranks = sorted(path.parent.name for path in directory.glob("rank*/segment-*"))
        hint = f"; it has one for each rank: {', '.join(dict.fromkeys(ranks))}" if ranks else ""
        raise BadInput(f"{directory}: no recording is there{hint}")
    return paths
