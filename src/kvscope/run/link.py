"""Messages between a campaign, its zygote and its engines: JSON objects over pairs of sockets."""

import json
import os
import socket
from collections.abc import Sequence
from typing import Any

MOST_BYTES = 1 << 18
MOST_DESCRIPTORS = 4


class Lost(Exception):
    """The process at the other end has ended; `reason` is its own explanation, if it gave one."""

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(reason or "")
        self.reason = reason


class Silent(Lost):
    """The process at the other end has said nothing for too long."""


class Link:
    """An end of a pair of sockets; a message is sent or received whole."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    @classmethod
    def pair(cls) -> "tuple[Link, Link]":
        """Two ends that hear each other; the second may be passed to another process."""
        end, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(end), cls(other)

    @classmethod
    def of(cls, descriptor: int) -> "Link":
        """The end that a process was given."""
        return cls(socket.socket(fileno=descriptor))

    def fileno(self) -> int:
        """The descriptor, for `select` and for passing it on."""
        return self._end.fileno()

    def send(self, descriptors: Sequence[int] = (), **message: Any) -> None:
        """Send a message with descriptors of this process; Lost if the other end is closed."""
        try:
            socket.send_fds(self._end, [json.dumps(message).encode()], list(descriptors))
        except (BrokenPipeError, ConnectionResetError):
            raise Lost from None

    def offer(self, **message: Any) -> None:
        """Send a message if there is room for it, without waiting; Lost if the other end is closed.

        A sender that is measured must not wait for a reader.
        """
        try:
            self._end.send(json.dumps(message).encode(), socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionResetError):
            raise Lost from None

    def receive(self, limit_s: float | None = None) -> tuple[dict[str, Any], list[int]]:
        """Wait for a message; returns it and the descriptors that came with it.

        Lost if the other end is closed, Silent if there is no message within `limit_s`.
        """
        self._end.settimeout(limit_s)
        try:
            text, descriptors, _, _ = socket.recv_fds(self._end, MOST_BYTES, MOST_DESCRIPTORS)
        except TimeoutError:
            raise Silent from None
        except ConnectionResetError:
            raise Lost from None
        if not text:
            for descriptor in descriptors:
                os.close(descriptor)
            raise Lost
        message: dict[str, Any] = json.loads(text)
        return message, descriptors

    def close(self) -> None:
        """Close this end; the other end is lost then."""
        self._end.close()
