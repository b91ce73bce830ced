"""A checkpoint: one small JSON document that is replaced as a whole.

The file is one line of text so that a person can read it:

    PNSC1 <CRC-32C of the JSON, 8 hex digits> <JSON object> <newline>

`PNSC1` names the format and its version. A crash while saving leaves the old document or the new
one. A damaged file is reported and left where it is.
"""

import json
from pathlib import Path
from typing import Any, Final

import orjson

from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.frame import crc32c
from penstock.logd.store.disk import REAL_DISK, Disk, write_atomically

MAGIC: Final = b"PNSC"
FORMAT_VERSION: Final = b"1"


class Checkpoint:
    """A JSON object in a file.

    Args:
        path: The file; its directory exists.
        disk: The file system.
    """

    def __init__(self, path: Path, *, disk: Disk = REAL_DISK) -> None:
        self.path = path
        self._disk = disk

    def load(self) -> dict[str, Any] | None:
        """The document that was saved last; None when none was.

        Raises:
            CorruptError: The file is damaged.
            RefusedError: `UNKNOWN_FORMAT`: written by a later version.
        """
        if not self._disk.exists(self.path):
            return None
        file = self._disk.open(self.path)
        data = file.read(0, file.size())
        file.close()
        return _decode(data, str(self.path))

    def save(self, document: dict[str, Any], *, durable: bool = True) -> None:
        """Replace the document; durable on return, unless it may as well be lost by a crash.

        Raises:
            OSError: The disk failed; the old document is still there, or the new one already.
        """
        text = _encode(document)
        line = b"%s%s %08x %s\n" % (MAGIC, FORMAT_VERSION, crc32c(text), text)
        write_atomically(self._disk, self.path, line, durable=durable)


def _encode(document: dict[str, Any]) -> bytes:
    """A million ids take json 1.7 s in which no other thread runs, orjson a tenth of that."""
    try:
        return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # file names need not be UTF-8; json writes what stands for their bytes
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _decode(data: bytes, where: str) -> dict[str, Any]:
    head, crc, text = (*data.rstrip(b"\n").split(b" ", 2), b"", b"")[:3]
    if not head.startswith(MAGIC) or crc != b"%08x" % crc32c(text) or not data.endswith(b"\n"):
        raise CorruptError("checkpoint magic or CRC does not match", where=where)
    if head[len(MAGIC) :] != FORMAT_VERSION:
        version = head[len(MAGIC) :].decode("ascii", "replace")
        message = f"{where}: checkpoint format version {version} is not known"
        raise RefusedError("UNKNOWN_FORMAT", message, version=version, file=where)
    document = json.loads(text)
    if not isinstance(document, dict):
        raise CorruptError("checkpoint is not a JSON object", where=where)
    return document
