"""Encrypted frames: a log on a disk that must not tell what is in it.

AES-256-GCM (NIST SP 800-38D). An encrypted frame has the header of the frame that is in it, but for
flag bit 2 and the length and CRC of its body, which are those of the bytes on disk. So everything
that asks whether a frame is whole and where it belongs needs no key. Its body, little-endian:

    offset from its end
    -80-n  n the frame's own body, encrypted
      -80  4 the frame's own body CRC, encrypted with it; so are 4 zero bytes
      -72 16 tag
      -56 40 data key, wrapped (RFC 3394) with a key of the log
      -16  8 nonce: a number that counts the frames encrypted under the data key
       -8  4 number of the log's key
       -4  4 reserved, zero

Authenticated besides: the header with a body CRC of zero, the last 56 bytes, what the log is bound
to (its stream's incarnation and its partition), and the base offset of the segment.

A nonce never comes twice under one data key, because an `Encryptor` makes its own from the system's
random numbers when it is born, counts each frame, and is never made again from what is on disk:
keys that are read decrypt, and never encrypt. Whatever is cut off, lost, overwritten or rewritten,
in this process or a later one: what takes its place is encrypted under another key, or with a
higher number. A file that is copied as it is has
the same bytes under the same key; a replica has its own keys (docs/decisions/0028).

A file beside the segments that holds what came with records is encrypted as a whole, under a data
its own key:

    offset size field
         0    4 magic            b"PNSE"
         4    1 format version   1
         5    3 reserved         zero
         8    4 number of the log's key
        12   40 data key, wrapped
        52    n the file, encrypted
      52+n   16 tag; bytes 0 to 52, the log and the file's name are authenticated besides
"""

import struct
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock.base.lazy_module import LazyModule
from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.format.frame import ENCRYPTION_BYTES, FrameHeader, crc32c, encode_header

if TYPE_CHECKING:
    from cryptography import exceptions
    from cryptography.hazmat.primitives import keywrap
    from cryptography.hazmat.primitives.ciphers import aead as ciphers
else:
    exceptions = LazyModule("cryptography.exceptions")
    keywrap = LazyModule("cryptography.hazmat.primitives.keywrap")
    ciphers = LazyModule("cryptography.hazmat.primitives.ciphers.aead")

Frame = tuple[FrameHeader, bytes]

KEY_BITS: Final = 256
FILE_MAGIC: Final = b"PNSE"
FILE_VERSION: Final = 1

_INNER: Final = struct.Struct("<I4x")
_TRAILER: Final = struct.Struct("<40sQI4x")
_TAG_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_FILE_HEAD: Final = struct.Struct("<4sB3xI40s")
_SEGMENT: Final = struct.Struct("<Q")
assert _INNER.size + _TAG_BYTES + _TRAILER.size == ENCRYPTION_BYTES

CIPHERS_MAX: Final = 64
"""Data keys of one log that are kept unwrapped for reading: a segment has one, and one more for
each time that the log was opened while it was the last one."""


class Encryptor:
    """Encrypts the frames of one segment under its own data key. For one thread.

    Args:
        cipher: Cipher of the log.
        segment: Base offset.

    Attributes:
        segment: The argument.
        number: Number of the log's key that wraps the segment's.
    """

    def __init__(self, cipher: "SegmentCipher", segment: int) -> None:
        self.segment = segment
        self._cipher = cipher
        self.number, self._aead, self._wrapped = cipher.new_aead()
        self._count = 0

    def encrypt(self, header: FrameHeader, body: bytes) -> Frame:
        """The frame as it is to lie on disk."""
        self._count += 1
        length = len(body) + ENCRYPTION_BYTES
        encrypted = replace(header, body_length=length, body_crc=0, encrypted=True)
        trailer = _TRAILER.pack(self._wrapped, self._count, self.number)
        inner = b"".join((body, _INNER.pack(header.body_crc)))
        aad = self._cipher.aad(encrypted, trailer, self.segment)
        outer = self._aead.encrypt(_nonce(self._count), inner, aad) + trailer
        return replace(encrypted, body_crc=crc32c(outer)), outer


class SegmentCipher:
    """The keys of one log. Used on any thread.

    Args:
        keys: Keys by number; the greatest encrypts, all of them decrypt.
        bound: Text that identifies the log; no other log has it.
        master: Name of the master key that wraps them.

    Attributes:
        newest: Number of the key that encrypts.
        master: The argument, or the last master of `renew`.
    """

    def __init__(self, keys: Mapping[int, bytes], bound: bytes, master: str = "") -> None:
        self.newest = max(keys)
        self.master = master
        self._keys = dict(keys)
        self._bound = bound
        self._lock = threading.Lock()
        self._aeads: OrderedDict[tuple[int, bytes], ciphers.AESGCM] = OrderedDict()

    def renew(self, keys: Mapping[int, bytes], master: str) -> None:
        """Another master key wraps the log's keys, durably; the newest of them encrypts now.

        Args:
            keys: Those there were, and more.
            master: Its name.
        """
        with self._lock:
            self._keys |= keys
            self.newest, self.master = max(self._keys), master

    def decrypt(self, header: FrameHeader, body: bytes, segment: int) -> Frame:
        """The frame in an encrypted one whose CRCs hold.

        Raises:
            CorruptError: It was changed, is of another place, or is not encrypted.
        """
        if not header.encrypted:
            raise CorruptError("the frame is not encrypted, in a log whose frames are")
        if len(body) <= ENCRYPTION_BYTES:
            raise CorruptError("the encrypted frame is too short")
        trailer = body[-_TRAILER.size :]
        wrapped, count, number = _TRAILER.unpack(trailer)
        aead = self._aead(number, wrapped)
        aad = self.aad(replace(header, body_crc=0), trailer, segment)
        try:
            inner = aead.decrypt(_nonce(count), memoryview(body)[: -_TRAILER.size], aad)
        except exceptions.InvalidTag:
            message = "the frame cannot be decrypted: it was changed, or lies where it was not put"
            raise CorruptError(message) from None
        (body_crc,) = _INNER.unpack(inner[-_INNER.size :])
        plain = inner[: -_INNER.size]
        return replace(header, body_length=len(plain), body_crc=body_crc, encrypted=False), plain

    def encrypt_file(self, name: str, data: bytes) -> bytes:
        """A file's bytes as they are to lie on disk."""
        number, aead, wrapped = self.new_aead()
        head = _FILE_HEAD.pack(FILE_MAGIC, FILE_VERSION, number, wrapped)
        return head + aead.encrypt(_nonce(0), data, self._file_aad(head, name))

    def decrypt_file(self, name: str, data: bytes, *, where: str) -> bytes:
        """The file in an encrypted one.

        Raises:
            CorruptError: It was changed, is another log's, or is not encrypted.
            RefusedError: `UNKNOWN_FORMAT`: encrypted by a later version.
        """
        if len(data) < _FILE_HEAD.size or not is_encrypted_file(data):
            raise CorruptError("the file is not encrypted, of a log that is", where=where)
        head = data[: _FILE_HEAD.size]
        _, version, number, wrapped = _FILE_HEAD.unpack(head)
        if version != FILE_VERSION:
            message = f"{where}: encryption format version {version} is not known"
            raise RefusedError("UNKNOWN_FORMAT", message, version=version, file=where)
        try:
            aead = self._aead(number, wrapped)
            encrypted = data[_FILE_HEAD.size :]
            return aead.decrypt(_nonce(0), encrypted, self._file_aad(head, name))
        except (exceptions.InvalidTag, CorruptError):
            raise CorruptError(
                "the file cannot be decrypted: it was changed, or is another log's", where=where
            ) from None

    # For encryptors.

    def new_aead(self) -> "tuple[int, ciphers.AESGCM, bytes]":
        """A cipher under a key that was never used before, that key wrapped, and with which."""
        key, number = ciphers.AESGCM.generate_key(KEY_BITS), self.newest
        return number, ciphers.AESGCM(key), keywrap.aes_key_wrap(self._keys[number], key)

    def aad(self, header: FrameHeader, trailer: bytes, segment: int) -> bytes:
        """Return the additional authenticated data of a frame's body."""
        return b"".join((encode_header(header), trailer, _SEGMENT.pack(segment), self._bound))

    # Parts.

    def _file_aad(self, head: bytes, name: str) -> bytes:
        return b"".join((head, name.encode(), b"\0", self._bound))

    def _aead(self, number: int, wrapped: bytes) -> "ciphers.AESGCM":
        found = number, wrapped
        with self._lock:
            aead = self._aeads.get(found)
            if aead is not None:
                self._aeads.move_to_end(found)
                return aead
        if number not in self._keys:
            raise CorruptError(f"encrypted with the log's key {number}, which its keys do not have")
        try:
            aead = ciphers.AESGCM(keywrap.aes_key_unwrap(self._keys[number], wrapped))
        except (keywrap.InvalidUnwrap, ValueError):
            message = (
                "the frame's data key is none of this log's: it was changed, or is another log's"
            )
            raise CorruptError(message) from None
        with self._lock:
            self._aeads[found] = aead
            if len(self._aeads) > CIPHERS_MAX:
                self._aeads.popitem(last=False)
        return aead


class LogKeySet:
    """Encryption of what is appended to a log, a segment at a time. For the log's writer.

    Args:
        cipher: The log's cipher; None: nothing is encrypted.
    """

    def __init__(self, cipher: SegmentCipher | None) -> None:
        self._cipher = cipher
        self._active: Encryptor | None = None

    def frames(self, segment: int, frames: Sequence[Frame]) -> Sequence[Frame]:
        """The frames as they are to lie in the segment that takes appends."""
        if self._cipher is None:
            return frames
        active = self._active
        if active is None or active.segment != segment or active.number != self._cipher.newest:
            active = self._active = Encryptor(self._cipher, segment)
        return [active.encrypt(header, body) for header, body in frames]


def decrypted(
    cipher: SegmentCipher | None, header: FrameHeader, body: bytes, segment: int
) -> Frame:
    """A frame as it was written, from one as it lies on disk, whose CRCs hold.

    Raises:
        CorruptError: It cannot be decrypted, or there is no key.
    """
    if cipher is not None:
        return cipher.decrypt(header, body, segment)
    if header.encrypted:
        raise CorruptError("the frame is encrypted, and the log has no keys")
    return header, body


def is_encrypted_file(data: bytes) -> bool:
    """Return whether a file's bytes were made by `SegmentCipher.encrypt_file`."""
    return data.startswith(FILE_MAGIC)


def _nonce(count: int) -> bytes:
    return count.to_bytes(_NONCE_BYTES, "little")
