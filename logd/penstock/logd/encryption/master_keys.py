"""Master keys: where an operator keeps them, and what they look like.

A master key is 32 bytes, written as 64 hexadecimal digits or in base64, in a file or in an
environment variable. It is read each time that it is needed, so that a file that was missing can be
put in its place while logd runs.
"""

import base64
import binascii
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import ConfigDict, Field, model_validator

from penstock.logd.encryption.cipher import SegmentCipher
from penstock.logd.encryption.key_file import bound_to, open_cipher
from penstock.logd.errors import RefusedError
from penstock.logd.metadata.streams import Stream, StreamConfig
from penstock.logd.storage import REAL_DISK
from penstock.logd.storage.disk import make_directories
from penstock.service import Quantities
from penstock.service.config_types import Form

KEY_BYTES: Final = 32
KEYS_MAX: Final = 64
"""Master keys of one configuration: the active one, and those that older data may need."""

_TEXT_BYTES_MAX: Final = 1024
"""Maximum bytes of a key's file; a larger one is some other file."""

_HEX: Final = re.compile(rb"[0-9A-Fa-f]{64}")

KeyName = Annotated[str, Form(r"^[A-Za-z0-9._-]{1,64}$", "1 to 64 characters of A-Z a-z 0-9 . _ -")]


class _Settings(Quantities):
    model_config = ConfigDict(extra="forbid", frozen=True)


class KeySource(_Settings):
    """Location of one master key: a file or an environment variable."""

    file: Path | None = None
    env: Annotated[str, Field(min_length=1, max_length=256)] | None = None

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.file is None) == (self.env is None):
            msg = "name either a file or an environment variable (env)"
            raise ValueError(msg)
        return self


class EncryptionSection(_Settings):
    """The section `encryption`.

    Attributes:
        active: Name of the key that streams are encrypted with from now on.
        keys: Location of each key, by name; old keys stay for what they encrypted.
    """

    active: KeyName
    keys: Annotated[dict[KeyName, KeySource], Field(min_length=1, max_length=KEYS_MAX)]

    @model_validator(mode="after")
    def _check_active(self) -> Self:
        if self.active not in self.keys:
            msg = f"active: {self.active!r} is not one of the keys"
            raise ValueError(msg)
        return self


class MasterKeys:
    """Master keys by name; see `penstock.logd.encryption.key_file.Masters`.

    Args:
        keys: Location of each key, by name.
        active: Name of the key that wraps new ones; None: nothing is encrypted here.
    """

    def __init__(self, keys: Mapping[str, KeySource], active: str | None = None) -> None:
        self._keys = keys
        self._active = active

    @classmethod
    def of(cls, section: EncryptionSection | None) -> "MasterKeys":
        """Return the master keys of a configuration."""
        return cls({}) if section is None else cls(section.keys, section.active)

    def follow(self, section: EncryptionSection) -> None:
        """These keys are named now, and this one is active; on any thread."""
        self._keys = dict(section.keys)  # the new one can be read before it is wrapped with
        self._active = section.active

    @property
    def used(self) -> bool:
        """True if logs are encrypted here."""
        return self._active is not None

    @property
    def active(self) -> str:
        """Name of the one that wraps.

        Raises:
            RefusedError: `ENCRYPTION_UNAVAILABLE`.
        """
        if self._active is None:
            message = "there is no master key: logd's configuration has no section `encryption`"
            raise RefusedError("ENCRYPTION_UNAVAILABLE", message)
        return self._active

    def key(self, name: str) -> bytes:
        """One key.

        Raises:
            RefusedError: `KEY_UNAVAILABLE`: it is not named, or cannot be read.
        """
        source = self._keys.get(name)
        if source is None:
            known = ", ".join(sorted(self._keys)) or "none"
            raise _unavailable(name, f"it is not among those that are named ({known})")
        if source.env is not None:
            text = os.environ.get(source.env, "").encode("utf-8", "surrogateescape")
            where = f"the environment variable {source.env}"
        else:
            text, where = _read(name, source), f"{source.file}"
        key = _decode(text.strip())
        if key is None:
            form = f"{KEY_BYTES} bytes in hexadecimal digits or base64"
            raise _unavailable(name, f"{where} does not hold {form}")
        return key

    def cipher_of(self, stream: Stream, directory: Path, partition: int) -> SegmentCipher | None:
        """Return the cipher of a partition's log; None: it is not encrypted.

        Raises:
            RefusedError, CorruptError, OSError: The same as in `open_cipher`.
        """
        if stream.config.encryption == "none":
            return None
        make_directories(REAL_DISK, directory)
        return open_cipher(directory, self, bound_to(stream.incarnation, partition))

    def check(self, config: StreamConfig) -> None:
        """Make sure that a new stream can be encrypted as it asks for.

        Raises:
            RefusedError: `ENCRYPTION_UNAVAILABLE`, `KEY_UNAVAILABLE`.
        """
        if config.encryption != "none":
            self.key(self.active)


def _read(name: str, source: KeySource) -> bytes:
    assert source.file is not None
    try:
        with source.file.open("rb") as file:
            return file.read(_TEXT_BYTES_MAX + 1)
    except OSError as error:
        raise _unavailable(name, f"{source.file}: {error.strerror}") from None


def _decode(text: bytes) -> bytes | None:
    """The key that a text is; None if it is none."""
    if _HEX.fullmatch(text):
        return bytes.fromhex(text.decode())
    try:
        key = base64.b64decode(text, validate=True)
    except binascii.Error:
        return None
    return key if len(key) == KEY_BYTES else None


def _unavailable(name: str, why: str) -> RefusedError:
    message = f"master key {name!r}: {why}; see `encryption.keys` of logd's configuration"
    return RefusedError("KEY_UNAVAILABLE", message, key=name)
