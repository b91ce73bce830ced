"""Memory of malloc in a process that takes and frees the same few megabytes over and over."""

import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_LARGE_BYTES: Final = 1 << 20
"""What is larger is mapped by itself, and unmapped when it is freed. What grows in the heap, as a
buffer for a large message, leaves a hole of each size that it had; a mapping grows where it is."""
_KEPT_BYTES: Final = 8 << 20


def keep_freed_memory() -> None:
    """Let the process keep up to 8 MiB that it freed at the end of its heap.

    glibc gives such memory back to the kernel at each chance, and takes it again with a page fault
    for each 4 KiB. Other C libraries have no such setting, and go on as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
