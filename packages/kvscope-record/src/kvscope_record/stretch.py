"""Stretches of a recording: from when to when."""

import re
import sys
from datetime import UTC, datetime, timedelta, timezone

from kvscope.api.collecting import foreign
from kvscope.api.errors import BadInput

NEWEST = foreign.Stretch()
"""No choice: the newest ten minutes."""

NEWEST_S = 600.0
_AROUND_S = 60.0  # before and after a request comes
_NS = 1e-9
_CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?")


def limits_ns(stretch: foreign.Stretch, began: datetime, ended: datetime) -> tuple[int, int]:
    """Begin and end of a stretch in ns of UTC, of a session of these times in the server's zone.

    Without a choice it is the newest ten minutes. BadInput if a time is malformed, or the session
    has nothing between them.
    """
    begin, end = began, ended
    if stretch.since is None and stretch.until is None:
        begin = ended - timedelta(seconds=stretch.last_s or NEWEST_S)
    if stretch.since is not None:
        begin = _instant(stretch.since, "--from", ended)
    if stretch.until is not None:
        end = _instant(stretch.until, "--to", ended)
    if begin > end or end < began or begin > ended:
        raise BadInput(
            f"the recording has nothing from {words(begin)} to {words(end)}: it is from "
            f"{words(began)} to {words(ended)}, in the server's time zone"
        )
    return ns_of(begin), sys.maxsize if stretch.until is None else ns_of(end)


def around_s(arrival_utc_ns: int) -> tuple[int, int]:
    """Begin and end, in ns of UTC, of the stretch around a request."""
    half_ns = int(_AROUND_S / _NS)
    return arrival_utc_ns - half_ns, arrival_utc_ns + half_ns


def moment(utc_ns: int, offset_s: int) -> datetime:
    """A time of day in a zone that is so many seconds before UTC."""
    zone = timezone(timedelta(seconds=offset_s))
    return datetime.fromtimestamp(utc_ns // 1000 / 1e6, UTC).astimezone(zone)


def ns_of(moment: datetime) -> int:
    """Nanoseconds of a time of day since 1970."""
    return round((moment - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1)) * 1000


def words(moment: datetime) -> str:
    """A time of day for messages: '2026-11-28 14:00:05'."""
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _instant(text: str, option: str, ended: datetime) -> datetime:
    """The instant of a text: of a time without a date, the newest before the recording's end."""
    try:
        if _CLOCK.fullmatch(text):
            hours, minutes, *seconds = text.split(":")
            day = ended.replace(hour=int(hours), minute=int(minutes), second=0, microsecond=0)
            instant = day + timedelta(seconds=float(seconds[0]) if seconds else 0.0)
            return instant if instant <= ended or option == "--to" else instant - timedelta(days=1)
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(
            f"{option}: {text!r} must be a time of the server's clock, as 14:00, 14:00:30 or "
            "2026-11-28T14:00"
        ) from None
    return instant if instant.tzinfo else instant.replace(tzinfo=ended.tzinfo)
