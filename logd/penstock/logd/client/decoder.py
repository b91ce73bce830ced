"""Responses out of the bytes of a connection; no I/O.

The caller reads from its socket straight into `room()` and says how much with `filled()`: a payload
is copied once, from the kernel to where its frames are decoded.
"""

from typing import Any, Final

import orjson
import pyarrow as pa

from penstock.logd.api.operations import Document
from penstock.logd.api.protocol import RESPONSE_HEAD, decode_response_head
from penstock.logd.errors import CorruptError
from penstock.logd.format.frame import BODY_SIZE_MAX, HEADER_SIZE
from penstock.logd.limits import FETCH_BYTES_MAX

PAYLOAD_MAX: Final = FETCH_BYTES_MAX + BODY_SIZE_MAX + HEADER_SIZE
"""Bytes of a response's payload: what may be asked for, or one frame beyond it."""

Response = tuple[Document, memoryview]

_NOTHING: Final = memoryview(b"")


class ResponseDecoder:
    """One connection's responses, one after the other.

    Args:
        where: The peer, for errors.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._view = memoryview(bytearray(RESPONSE_HEAD.size))
        self._filled = 0
        self._lengths: tuple[int, int] | None = None
        self._header: Document | None = None

    def room(self) -> memoryview:
        """Return the memory for the next bytes; never empty."""
        return self._view[self._filled :]

    def filled(self, count: int) -> Response | None:
        """Take note of bytes that were put into `room`; a response when one is complete.

        Raises:
            CorruptError: Not a response of logd's; the connection is of no more use.
        """
        self._filled += count
        if self._filled < len(self._view):
            return None
        whole = self._view
        if self._lengths is None:
            self._lengths = decode_response_head(bytes(whole), payload_max=PAYLOAD_MAX)
            self._expect(self._lengths[0])
            return None
        if self._header is None:
            header = self._header = self._decode(bytes(whole))
            if self._lengths[1]:
                self._expect(self._lengths[1])
                return None
            whole = _NOTHING
        else:
            header = self._header
        self._lengths = self._header = None
        self._expect(RESPONSE_HEAD.size)
        return header, whole.toreadonly()

    def _expect(self, size: int) -> None:
        self._view = memoryview(pa.allocate_buffer(size)).cast("B")  # not filled with zeros first
        self._filled = 0

    def _decode(self, body: bytes) -> dict[str, Any]:
        try:
            header = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise CorruptError(f"answer is not JSON: {error}", where=self._where) from None
        if not isinstance(header, dict):
            raise CorruptError("answer is not an object", where=self._where)
        return header
