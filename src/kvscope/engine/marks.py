"""NVTX ranges, which are pushed only under a profiler; otherwise the calls do nothing.

`nvtx` is pinned in envs/ to a release whose ranges the available Nsight Systems records.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from kvscope.base.ranges import DOMAIN


class Marks:
    """Pushes and pops ranges of kvscope's NVTX domain on the calling thread."""

    def push(self, name: str, payload: int = 0) -> None:
        """Open a range."""

    def pop(self) -> None:
        """Close the innermost open range."""

    @contextmanager
    def range(self, name: str, payload: int = 0) -> Iterator[None]:
        """A range around a block of code."""
        self.push(name, payload)
        try:
            yield
        finally:
            self.pop()


class NvtxMarks(Marks):
    """Marks that reach the profiler."""

    def __init__(self) -> None:
        import nvtx  # only profiled runs need the package

        self._nvtx = nvtx

    def push(self, name: str, payload: int = 0) -> None:
        """Open a range whose payload is `payload`."""
        self._nvtx.push_range(name, domain=DOMAIN, payload=payload)

    def pop(self) -> None:
        """Close the innermost open range."""
        self._nvtx.pop_range(domain=DOMAIN)
