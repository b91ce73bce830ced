"""Manifest of a directory in a store: its files, each whole or in pieces that manifests share.

A manifest says all of the directory at one moment, so that what is read back fits together. Small
files are in it. A larger one is cut into pieces of one size, each stored under the term it was
stored in and its SHA-256: of a file that only grows, all pieces but the last are there already.
With the term in its name a piece is removed by nobody but who stored it, or was told to follow.
"""

import base64
import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

FORMAT: Final = 1
WHOLE_BYTES_MAX: Final = 1024
"""Maximum bytes of a file that is stored in the manifest itself."""

PART: Final = re.compile(r"\d{8}/[0-9a-f]{64}")
"""A piece's name."""

PART_BYTES: Final = 256 * 1024


class DamagedManifestError(ValueError):
    """Bytes are no manifest; the text says why."""


class LaterFormatError(ValueError):
    """A later version wrote it; the text says which format."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in the store.

    Attributes:
        whole: Content of a small file; None: it is in pieces.
        parts: The names of its pieces, where it is not: TERM/SHA-256.
    """

    whole: bytes | None
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """A directory at one moment.

    Attributes:
        job: Job that owns it.
        lineage: Id of all manifests that go back to one beginning.
        files: Files by path, relative to the directory.
    """

    job: str
    lineage: str
    files: Mapping[str, StoredFile]

    def parts(self) -> set[str]:
        """Return the names of the pieces that the manifest needs."""
        return {part for kept in self.files.values() for part in kept.parts}


def cut(data: bytes) -> list[bytes]:
    """The pieces of a file; none: it is kept whole."""
    if len(data) <= WHOLE_BYTES_MAX:
        return []
    return [data[begin : begin + PART_BYTES] for begin in range(0, len(data), PART_BYTES)]


def digest(part: bytes) -> str:
    """Return the SHA-256 of a piece, in hexadecimal, with which the piece's name ends."""
    return hashlib.sha256(part).hexdigest()


def encode(manifest: Manifest) -> bytes:
    """It as an object."""
    document = {
        "format": FORMAT,
        "job": manifest.job,
        "lineage": manifest.lineage,
        "files": {path: _as_json(kept) for path, kept in manifest.files.items()},
    }
    body = json.dumps(document, separators=(",", ":")).encode()
    return digest(body).encode() + b"\n" + gzip.compress(body, compresslevel=5, mtime=0)


def decode(data: bytes) -> Manifest:
    """It out of an object.

    Raises:
        DamagedManifestError: It is none.
        LaterFormatError: It is one that this version does not know.
    """
    said, _, packed = data.partition(b"\n")
    try:
        body = gzip.decompress(packed)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DamagedManifestError(f"it cannot be unpacked: {error}") from None
    if digest(body).encode() != said:
        raise DamagedManifestError("it has not the checksum that it says")
    try:
        document = json.loads(body)
        if document["format"] == FORMAT:
            files = {_path(path): _from_json(found) for path, found in document["files"].items()}
            return Manifest(str(document["job"]), str(document["lineage"]), files)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedManifestError(f"{type(error).__name__}: {error}") from None
    raise LaterFormatError(f"format {document['format']}")


def _path(name: str) -> str:
    """Return the name; raise ValueError if it leads out of the directory."""
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise ValueError(f"it has a file {name!r}")
    return name


def _as_json(kept: StoredFile) -> str | list[str]:
    return list(kept.parts) if kept.whole is None else base64.b64encode(kept.whole).decode()


def _from_json(found: Any) -> StoredFile:
    if isinstance(found, str):
        return StoredFile(base64.b64decode(found))
    if not all(PART.fullmatch(it) for it in found):
        raise ValueError(f"it has pieces {found!r:.200}")
    return StoredFile(None, tuple(found))
