"""Permissions that hold for root, too: tests close files, and have processes of others."""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_VERSION_3 = 0x20080522
_OVERRIDES = 1 << 1 | 1 << 2 | 1 << 5
"""CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH and CAP_KILL."""
NOBODY = 65534


@contextmanager
def modes_apply() -> Iterator[None]:
    """Let this thread open only what modes allow its user, and signal only its user's processes."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    before = (ctypes.c_uint32 * 6)()
    _check(libc.capget(header, before))
    lowered = (ctypes.c_uint32 * 6)(*before)
    lowered[0] &= ~_OVERRIDES
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


@contextmanager
def others_process() -> Iterator[int]:
    """The number of a process that this thread may not signal within the block."""
    if os.geteuid() != 0:
        yield 1  # init is root's
        return
    with subprocess.Popen(["sleep", "600"], user=NOBODY) as process:
        try:
            with modes_apply():
                yield process.pid
        finally:
            process.kill()
