"""Permissions that hold for root, too: tests close files and directories for real."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_VERSION_3 = 0x20080522
_FILE_OVERRIDES = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""


@contextmanager
def modes_apply() -> Iterator[None]:
    """Let this thread open only what the modes of files and directories allow its user."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    before = (ctypes.c_uint32 * 6)()
    _check(libc.capget(header, before))
    lowered = (ctypes.c_uint32 * 6)(*before)
    lowered[0] &= ~_FILE_OVERRIDES
    _check(libc.capset(header, lowered))
    try:
        yield
    finally:
        _check(libc.capset(header, before))


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@contextmanager
def closed(*paths: Path, mode: int = 0) -> Iterator[None]:
    """Take away the permissions of paths, and this thread's right to pass over that."""
    before = {path: path.stat().st_mode for path in paths}
    for path in paths:
        path.chmod(mode)
    try:
        with modes_apply():
            yield
    finally:
        for path, its in before.items():
            path.chmod(its)
