"""Events of a stretch of a recording, and what is missing in it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from kvscope.api.collecting import foreign
from kvscope.api.errors import BadInput
from kvscope_record import lock
from kvscope_record.compact import Compact
from kvscope_record.frames import Frame, frames
from kvscope_record.gaps import Gap, Recorded, mend
from kvscope_record.records import Closed, Done, Event, Live, Segment
from kvscope_record.segments import segment_paths
from kvscope_record.sessions import Session, sessions_of
from kvscope_record.stretch import NEWEST, NEWEST_S, around_s, limits_ns, moment, words


@dataclass
class Window:
    """A stretch of a recording."""

    facts: dict[str, Any]
    begin: Segment
    session: int = 1
    live: list[Live] = field(default_factory=list)  # the requests that were there when it began
    events: list[Recorded] = field(default_factory=list)  # without segments
    notes: list[str] = field(default_factory=list)  # what is not in it, a sentence each

    @property
    def gaps(self) -> list[Gap]:
        """Its gaps."""
        return [event for event in self.events if isinstance(event, Gap)]


def read_window(directory: Path, stretch: foreign.Stretch = NEWEST) -> Window:
    """Stretch of a recording's directory; BadInput if it is empty, or what is whole is no record.

    It begins where a segment does, which is a minute before at most.
    """
    sessions = sessions_of(directory)
    session = _chosen(directory, sessions, stretch)
    began, ended = _times(session)
    first, begin_ns, end_ns = _place(session, stretch, began, ended)
    reader = _Reader(session, end_ns)
    for number in (n for n in session.segments if n >= first):
        if not reader.read(number):
            break
    window = reader.window
    if window is None:
        raise BadInput(f"{directory}: nothing has been recorded there yet")
    mended = mend(window.live, window.events)
    window.events = mended.events
    window.notes += [
        *_extent(stretch, window, began, ended, begin_ns),
        *_sessions(directory, sessions, session),
        *(gap.sentence for gap in window.gaps),
    ]
    if session.again:
        names = ", ".join(path.name for path in session.again)
        window.notes.append(f"{names}: the segment is there twice; it is read once")
    if mended.unknown_ends:
        window.notes.append(
            f"requests: how {mended.unknown_ends} ended is missing; they count as aborted then"
        )
    if mended.unknown_prompts:
        window.notes.append(
            f"requests: the arrivals of {mended.unknown_prompts} are missing; as their prompts "
            "count the tokens that their first recorded pass had"
        )
    if window.begin.step:
        window.notes.append(
            f"passes before {window.begin.step} are not in the tables: of "
            f"{len(window.live)} request(s) only a part is shown"
        )
    return window


class _Reader:
    """Reads the segments of a stretch, and notices what is missing between them."""

    def __init__(self, session: Session, end_ns: int) -> None:
        self.window: Window | None = None
        self._session, self._end_ns = session, end_ns
        self._last: Frame | None = None
        self._compact = Compact()
        self._segment: Segment | None = None  # the newest
        self._damaged = ""  # frames since the last sound one
        self._gap: Gap | None = None  # that awaits the next segment's beginning
        self._awaited: Gap | None = None  # whose next segment begins

    def read(self, number: int) -> bool:
        """Read a segment; False if the stretch has ended."""
        path, _ = self._session.segments[number]
        for frame in frames(path):
            header = frame.header
            if header.first_ns + header.to_utc_ns > self._end_ns:
                return False
            if (header.session, header.recording) != (
                self._session.number,
                self._session.recording,
            ):
                continue
            events = frame.events()
            if events is None:
                self._damaged = self._damaged or f"{path.name} is damaged at byte {frame.offset:,}"
                continue
            self._take(frame, events)
        return True

    def _take(self, frame: Frame, events: list[Event]) -> None:
        last = self._last
        if self.window is not None and last is not None:
            if frame.header.frame <= last.header.frame:
                return  # there already
            if frame.header.frame != last.header.frame + 1:
                self._miss(last, frame, self._why(last, frame))
        for event in events:
            self._add(frame, event)
        self._last, self._damaged = frame, ""

    def _why(self, last: Frame, frame: Frame) -> str:
        if self._damaged:
            return self._damaged
        if frame.header.segment > last.header.segment + 1:
            between = [path.name for path in segment_paths(frame.path.parent)]
            between = [name for name in between if last.path.name < name < frame.path.name]
            names = f"between {last.path.name} and {frame.path.name}"
            return f"nothing in {', '.join(between)} is readable" if between else f"no file {names}"
        name = frame.path.name if last.path == frame.path else last.path.name
        return f"{name} is cut or damaged behind byte {last.after:,}"

    def _miss(self, last: Frame, frame: Frame, why: str) -> None:
        assert self.window is not None
        before, after = last.header, frame.header
        gap = Gap(before.next_step, after.first_step, before.last_ns, after.first_ns, why)
        self.window.events.append(gap)
        self._gap = gap

    def _add(self, frame: Frame, event: Event) -> None:
        if isinstance(event, Segment):
            if self.window is None:
                self.window = Window(event.facts, event, self._session.number)
            elif self._segment and self._last and event.dropped != self._segment.dropped:
                self._miss(self._last, frame, _dropped(event.dropped - self._segment.dropped))
            self._segment, self._awaited, self._gap = event, self._gap, None
            return
        window = self.window
        if window is None:
            return  # the stretch begins with the next segment
        if isinstance(event, Live):
            if self._segment is window.begin:
                window.live.append(event)
            elif self._awaited is not None:
                self._awaited.live[event.request] = event
        elif isinstance(event, Done):
            if self._awaited is not None:
                self._awaited.done[event.request] = event
        elif not isinstance(event, Closed):
            window.events.append(self._compact(event))


def _dropped(records: int) -> str:
    return f"{records:,} record(s) were dropped, as the disk was full or did not keep up"


# ---------------------------------------------------------------------- which stretch


def _chosen(directory: Path, sessions: list[Session], stretch: foreign.Stretch) -> Session:
    if not sessions:
        raise BadInput(f"{directory}: nothing has been recorded there yet")
    if stretch.session is None:
        return sessions[-1]
    for session in reversed(sessions):
        if session.number == stretch.session:
            return session
    numbers = ", ".join(str(session.number) for session in sessions)
    raise BadInput(f"--session: {stretch.session} is not in {directory}, which has {numbers}")


def _times(session: Session) -> tuple[datetime, datetime]:
    """Begin and end of a session, in the server's time zone."""
    last = session.last_frame().header
    offset_s = _offset_s(session)
    return moment(session.began_utc_ns, offset_s), moment(last.last_ns + last.to_utc_ns, offset_s)


def _offset_s(session: Session) -> int:
    """The server's time zone, from the first segment that says it."""
    for path in session.paths:
        frame = next(frames(path), None)
        for event in (frame and frame.events()) or ():
            if isinstance(event, Segment):
                return int(event.facts.get("utc_offset_s", 0))
    return 0


def _place(
    session: Session, stretch: foreign.Stretch, began: datetime, ended: datetime
) -> tuple[int, int, int]:
    """The segment that a stretch begins with, and its begin and end in ns of UTC."""
    if stretch.around is None:
        begin_ns, end_ns = limits_ns(stretch, began, ended)
    else:
        begin_ns, end_ns = around_s(_arrival_ns(session, stretch.around))
    before = [
        number
        for number, (_, header) in session.segments.items()
        if header.first_ns + header.to_utc_ns <= begin_ns
    ]
    whole = (number for number in reversed(before) if _begins(session, number))
    return next(whole, next(iter(session.segments))), begin_ns, end_ns


def _begins(session: Session, number: int) -> bool:
    """True if the beginning of a segment is there."""
    frame = next(frames(session.segments[number][0]), None)
    return frame is not None and isinstance(next(iter(frame.events() or ()), None), Segment)


def _arrival_ns(session: Session, request: int) -> int:
    """When a request came, in ns of UTC, as exactly as a frame says."""
    candidates = [
        n for n, (_, header) in session.segments.items() if header.next_request <= request
    ]
    after: Iterator[Frame] = (
        frame
        for number in session.segments
        if number >= (candidates[-1] if candidates else 0)
        for frame in frames(session.segments[number][0])
    )
    for frame in after:
        if frame.header.next_request > request:
            return frame.header.first_ns + frame.header.to_utc_ns
    raise BadInput(f"--around: request {request} is not in the recording")


# ---------------------------------------------------------------------- what is said


def _extent(
    stretch: foreign.Stretch, window: Window, began: datetime, ended: datetime, begin_ns: int
) -> Iterator[str]:
    shown = moment(window.begin.utc_ns, int(window.facts.get("utc_offset_s", 0)))
    if (shown - began).total_seconds() > 1 and stretch == foreign.Stretch(session=stretch.session):
        yield (
            f"stretch: the newest {NEWEST_S / 60:.0f} minutes, from {words(shown)}; the recording "
            f"is from {words(began)} to {words(ended)}: --last, --from and --around choose another"
        )
    elif stretch != foreign.Stretch(session=stretch.session):
        yield f"stretch: from {words(shown)}, where a segment begins"


def _sessions(directory: Path, sessions: list[Session], session: Session) -> Iterator[str]:
    if len(sessions) > 1:
        others = ", ".join(str(one.number) for one in sessions if one is not session)
        yield f"session {session.number} of the directory is shown; --session chooses {others}"
    for one in sessions:
        living = one is sessions[-1] and lock.problem(directory) is not None
        if not living and not one.closed():
            why = "its server was killed or crashed, or the disk was full"
            yield f"session {one.number} was not closed: {why}"
