"""Reading a file past the bytes that its disk does not give."""

import errno
from typing import Final

from penstock.logd.store.disk import Content

UNREADABLE: Final = frozenset({errno.EIO, errno.EREMOTEIO, errno.EBADMSG, errno.EUCLEAN})
"""Errors of a read that say that these bytes cannot be had, and nothing of others."""

_PAGE_BYTES: Final = 4096


class SalvagedFile:
    """A file whose unreadable pages are zeros, which no frame is: whoever reads it finds damage.

    Args:
        file: It is left open.
    """

    def __init__(self, file: Content) -> None:
        self._file = file

    def read(self, position: int, length: int) -> bytes:
        """As of the file, page by page where it cannot be read at once."""
        try:
            return self._file.read(position, length)
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
        end, parts = position + length, []
        while position < end:
            upto = min(end, (position // _PAGE_BYTES + 1) * _PAGE_BYTES)
            parts.append(self._page(position, upto - position))
            position = upto
        return b"".join(parts)

    def _page(self, position: int, length: int) -> bytes:
        try:
            return self._file.read(position, length)
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            return bytes(length)
