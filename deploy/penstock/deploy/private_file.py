"""Files that hold secrets: for their owner alone, whole or not at all, as they change."""

import os
import secrets
from pathlib import Path
from typing import BinaryIO

from penstock.base.files import atomic_write

OWNER_ONLY = 0o600


def open_private_file(path: Path) -> BinaryIO:
    """A file to append to, for its owner alone."""
    file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, OWNER_ONLY), "ab")
    os.fchmod(file.fileno(), OWNER_ONLY)  # one from before may be readable for all
    return file


def write_private_file(path: Path, content: bytes) -> bool:
    """Make a file say this, so that a crash leaves what was there before or all of it.

    A file that says this already is not written: a process that follows it would read it again.

    Returns:
        Whether it said something else.
    """
    if path.exists() and path.read_bytes() == content:
        path.chmod(OWNER_ONLY)
        return False
    atomic_write(path, content, mode=OWNER_ONLY, parents=True)
    return True


def new_hash_key() -> str:
    """A key to make pseudonyms with, as ``penstock.specs.redact.sensitivity.HashKey`` reads it."""
    return f"k1:{secrets.token_urlsafe(32)}"
