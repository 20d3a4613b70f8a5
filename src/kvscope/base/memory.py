"""Memory of large arrays."""

import ctypes

_M_MMAP_THRESHOLD = -3


def return_freed_arrays(least_bytes: int = 1 << 20) -> None:
    """From now on freed arrays of that size go back to the system, as glibc's malloc is told.

    By itself it keeps them, once arrays of that size have come and gone: a fifth of the memory
    that collecting a large export takes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(_M_MMAP_THRESHOLD, least_bytes)
