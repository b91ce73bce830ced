"""Files that may not be read or written, for root too: on a thread without root's powers over them.

    lake.chmod(0o500)
    with pytest.raises(ConfigError):
        without_privileges(lambda: write_to(lake))

Linux keeps capabilities by thread, so the process, and what other threads do, is as it was.
"""

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

Value = TypeVar("Value")

_VERSION: Final = 0x20080522
"""Of capget and capset: _LINUX_CAPABILITY_VERSION_3."""
_OVERRIDING: Final = (1 << 1) | (1 << 2)
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def without_privileges(work: Callable[[], Value]) -> Value:
    """What a function returns, or raises, where permissions hold for root too."""
    with ThreadPoolExecutor(1, initializer=_give_up) as thread:
        return thread.submit(work).result()


def _give_up() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = _Header(_VERSION, 0), (_Sets * 2)()
    if libc.capget(ctypes.byref(header), sets) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    sets[0].effective &= ~_OVERRIDING
    sets[0].permitted &= ~_OVERRIDING
    sets[0].inheritable &= ~_OVERRIDING
    if libc.capset(ctypes.byref(header), sets) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
