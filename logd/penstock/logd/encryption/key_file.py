"""The keys of an encrypted log, and the files they lie in: wrapped with a master key, twice.

`keys` and `keys.copy` are checkpoints (`penstock.logd.storage.checkpoint`) beside the segments:

    {"bound": what the log is, "revision": n,
     "keys": [{"number": 1, "master": name, "wrapped": hex}, ...]}

`wrapped` is 12 bytes of nonce, the key under AES-256-GCM with the master key, and the tag;
authenticated besides are `bound`, the number and the master key's name. There are two files because
without them nothing of the log can be read: one that rots is made again from the other.

When another master key becomes the active one, while the log is open or before that, each key is
wrapped again with it and one more is made, under which everything is encrypted from then on. No
segment is touched. Both files have been replaced, one after the other, before anything is encrypted
under the new key: a crash leaves two
files that each have the keys of whatever is on disk; the one of the higher revision counts.
"""

import secrets
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import Struct

from penstock.base.lazy_module import LazyModule
from penstock.logd.encryption.cipher import KEY_BITS, SegmentCipher
from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.storage.checkpoint import KEYS_COPY_NAME, KEYS_NAME, Checkpoint
from penstock.logd.storage.disk import REAL_DISK, Disk
from penstock.logd.storage.segment import LOG_SUFFIX

if TYPE_CHECKING:
    from cryptography import exceptions
    from cryptography.hazmat.primitives.ciphers import aead as ciphers
else:
    exceptions = LazyModule("cryptography.exceptions")
    ciphers = LazyModule("cryptography.hazmat.primitives.ciphers.aead")

KEY_BYTES: Final = KEY_BITS // 8
KEYS_MAX: Final = 256
"""Keys of one log, one for each time that the master key was changed; then the last one stays."""

_NONCE_BYTES: Final = 12
_LOCKS: Final = tuple(threading.Lock() for _ in range(64))


class Masters(Protocol):
    """Master keys by name.

    Attributes:
        active: Name of the one that wraps.
    """

    @property
    def active(self) -> str:
        """Raises RefusedError: `ENCRYPTION_UNAVAILABLE`: there is none."""
        ...

    def key(self, name: str) -> bytes:
        """`KEY_BYTES` of it.

        Raises:
            RefusedError: `KEY_UNAVAILABLE`: it is not known, or cannot be read.
        """
        ...


class KeyRing(Struct, frozen=True):
    """A log's keys as its files say.

    Attributes:
        bound: Text that identifies the log.
        keys: Keys by number.
        masters: Names of the master keys that each is wrapped with, by number.
        revision: Revision of the files.
        whole: Whether both files say so.
    """

    bound: str
    keys: Mapping[int, bytes]
    masters: Mapping[int, str]
    revision: int
    whole: bool = True

    def cipher(self) -> SegmentCipher:
        return SegmentCipher(self.keys, self.bound.encode(), self.masters[max(self.keys)])


def bound_to(incarnation: str, partition: int) -> str:
    """Return the text that binds keys to the log of a stream's partition."""
    return f"{incarnation}/{partition}"


def open_cipher(
    directory: Path, masters: Masters, bound: str, *, disk: Disk = REAL_DISK
) -> SegmentCipher:
    """The cipher of a log that is written to: its keys are made when it is new.

    On return everything is wrapped with the active master key, durably.

    Args:
        directory: Directory of the log; it exists.
        masters: Master keys that wrap and unwrap.
        bound: Text of `bound_to`.
        disk: The file system.

    Raises:
        RefusedError: `KEY_UNAVAILABLE`, `WRONG_KEY`, `ENCRYPTION_UNAVAILABLE`, `UNKNOWN_FORMAT`.
        CorruptError: The key files are missing or damaged, or another log's.
        OSError: The disk failed.
    """
    with _lock_of(directory):
        ring = read_keys(directory, masters, disk=disk)
        if ring is None:
            _check_new(directory, disk)
            ring = KeyRing(bound, {}, {}, 0, whole=False)
        if ring.bound != bound:
            message = f"the keys are those of {ring.bound}, not of {bound}"
            raise CorruptError(message, where=str(directory / KEYS_NAME))
        return _under_active(directory, ring, masters, disk).cipher()


def rewrap(
    directory: Path, masters: Masters, cipher: SegmentCipher, *, disk: Disk = REAL_DISK
) -> None:
    """Have the keys of a log that is open wrapped with the active master key, durably.

    What is written from then on is under a new key; the log need not be closed for it.

    Args:
        directory: Directory of the log.
        masters: Master keys that wrap and unwrap.
        cipher: Cipher of the log.
        disk: The file system.

    Raises:
        RefusedError, CorruptError, OSError: As `open_cipher`; the cipher goes on as it was.
    """
    with _lock_of(directory):
        ring = read_keys(directory, masters, disk=disk)
        if ring is None:
            raise CorruptError("the log's keys are missing", where=str(directory / KEYS_NAME))
        ring = _under_active(directory, ring, masters, disk)
        cipher.renew(ring.keys, ring.masters[max(ring.keys)])


def read_keys(directory: Path, masters: Masters, *, disk: Disk = REAL_DISK) -> KeyRing | None:
    """The keys of a log; None when there are none. Nothing is changed.

    Raises:
        RefusedError: `KEY_UNAVAILABLE`, `WRONG_KEY`, `UNKNOWN_FORMAT`.
        CorruptError: No key file is sound.
    """
    document, whole = _load(directory, disk)
    if document is None:
        return None
    where = str(directory / KEYS_NAME)
    keys, names = {}, {}
    try:
        bound, revision = str(document["bound"]), int(document["revision"])
        for item in document["keys"]:
            number, master = int(item["number"]), str(item["master"])
            wrapped = bytes.fromhex(item["wrapped"])
            key = masters.key(master)
            keys[number] = _unwrap(key, wrapped, _aad(bound, number, master), master, where)
            names[number] = master
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(f"the keys are not understood: {error!r}", where=where) from None
    if not keys:
        raise CorruptError("there is no key in it", where=where)
    return KeyRing(bound, keys, names, revision, whole)


def masters_of(directory: Path, *, disk: Disk = REAL_DISK) -> list[str]:
    """Names of the master keys that a log's keys are wrapped with; none of a log without keys.

    Raises:
        RefusedError: `UNKNOWN_FORMAT`.
        CorruptError: No key file is sound.
    """
    document, _ = _load(directory, disk)
    try:
        return sorted({str(item["master"]) for item in (document or {"keys": ()})["keys"]})
    except (KeyError, TypeError) as error:
        where = str(directory / KEYS_NAME)
        raise CorruptError(f"the keys are not understood: {error!r}", where=where) from None


class InspectedKeys:
    """The keys of a log that is looked at by a process that may not have them all.

    Args:
        directory: Directory of the log.
        masters: Those there are; None: none.
        disk: The file system.

    Attributes:
        cipher: None: the log is not encrypted, or cannot be decrypted.
        readable: Whether its frames can be looked into.
        fault: Fault of the key files; empty: there is none.
        note: Why it cannot be decrypted; empty when it can.
    """

    meaning = "the log cannot be opened, and none of its records be read"

    def __init__(self, directory: Path, masters: Masters | None, disk: Disk) -> None:
        self.cipher: SegmentCipher | None = None
        self.fault = self.note = ""
        try:
            needed = masters_of(directory, disk=disk)
        except (CorruptError, RefusedError) as error:
            self.fault, needed = str(error), []
        if needed and masters is None:
            self.note = f"the log is encrypted, and wants the master key {', '.join(needed)}"
        elif needed and masters is not None:
            try:
                ring = read_keys(directory, masters, disk=disk)
            except CorruptError as error:
                self.fault = str(error)
            except RefusedError as error:
                self.note = str(error)
            else:
                self.cipher = ring.cipher() if ring is not None else None
        self.readable = not self.fault and not self.note


def _under_active(directory: Path, ring: KeyRing, masters: Masters, disk: Disk) -> KeyRing:
    """The keys under the active master key, in both files."""
    active = masters.active
    if not ring.keys or set(ring.masters.values()) != {active}:
        ring = _renewed(ring, active)
    if not ring.whole:
        _save(directory, ring, masters.key(active), disk)
    return ring


def _lock_of(directory: Path) -> threading.Lock:
    """Two that renewed one log's keys at a time would each make another key of one number."""
    return _LOCKS[hash(directory) % len(_LOCKS)]


def _load(directory: Path, disk: Disk) -> tuple[dict[str, Any] | None, bool]:
    """The document of the later file, and whether the other one is the same."""
    found: list[dict[str, Any]] = []
    problem: CorruptError | None = None
    for name in (KEYS_NAME, KEYS_COPY_NAME):
        try:
            document = Checkpoint(directory / name, disk=disk).load()
        except CorruptError as error:
            problem = error
            continue
        if document is not None:
            found.append(document)
    if not found and problem is not None:
        raise problem
    if not found:
        return None, False
    latest = max(found, key=_revision)
    return latest, len(found) == 2 and found[0] == found[1]


def _revision(document: Mapping[str, Any]) -> int:
    revision = document.get("revision")
    return revision if isinstance(revision, int) else 0


def _renewed(ring: KeyRing, active: str) -> KeyRing:
    """Return the keys under the active master key, and one more to encrypt with."""
    keys = dict(ring.keys)
    if len(keys) < KEYS_MAX:
        keys[max(keys, default=0) + 1] = secrets.token_bytes(KEY_BYTES)
    masters = dict.fromkeys(keys, active)
    return KeyRing(ring.bound, keys, masters, ring.revision + 1, whole=False)


def _save(directory: Path, ring: KeyRing, master_key: bytes, disk: Disk) -> None:
    aead = ciphers.AESGCM(master_key)
    items = []
    for number, key in ring.keys.items():
        master = ring.masters[number]
        nonce = secrets.token_bytes(_NONCE_BYTES)
        wrapped = nonce + aead.encrypt(nonce, key, _aad(ring.bound, number, master))
        items.append({"number": number, "master": master, "wrapped": wrapped.hex()})
    document = {"bound": ring.bound, "revision": ring.revision, "keys": items}
    for name in (KEYS_NAME, KEYS_COPY_NAME):
        Checkpoint(directory / name, disk=disk).save(document)


def _unwrap(key: bytes, wrapped: bytes, aad: bytes, master: str, where: str) -> bytes:
    nonce, key_and_tag = wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:]
    try:
        return ciphers.AESGCM(key).decrypt(nonce, key_and_tag, aad)
    except exceptions.InvalidTag:
        message = (
            f"{where}: the master key {master!r} is not the one that the log was encrypted with"
        )
        raise RefusedError("WRONG_KEY", message, key=master) from None


def _aad(bound: str, number: int, master: str) -> bytes:
    return f"penstock log key {number} {master} {bound}".encode()


def _check_new(directory: Path, disk: Disk) -> None:
    """Make sure that there is nothing in a log that has no keys."""
    for name in disk.list_directory(directory):
        if name.endswith(LOG_SUFFIX):
            file = disk.open(directory / name)
            size = file.size()
            file.close()
            if size:
                message = f"the log's keys are missing ({KEYS_NAME}, {KEYS_COPY_NAME})"
                raise CorruptError(message, where=str(directory))
