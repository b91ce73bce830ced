"""API keys: secrets of our own making, of which only digests are stored.

A file has one key a line:

    NAME  sha256:<64 hexadecimal digits>  [expires=2027-01-01T00:00:00Z]  [groups=one,two]

Blank lines and those that begin with `#` say nothing. A name may have several keys, so that one can
be replaced while both are taken. A key is `penstock-key.NAME.SECRET`; the secret has 256 bits from
the system's source of randomness, so that one round of SHA-256 cannot be undone by guessing, and
costs nothing on the event loop. What people choose as passwords would need a slow hash: there is no
way to store those.
"""

import hashlib
import hmac
import re
import secrets
import stat
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from msgspec import Struct

from penstock.logd.errors import CorruptError
from penstock.logd.limits import API_KEYS_SIZE_MAX, SECRET_LENGTH_MAX
from penstock.logd.security.principal import (
    ANONYMOUS,
    Identity,
    Method,
    Principal,
    UnauthenticatedError,
)

PREFIX: Final = "penstock-key."
"""Prefix of every key, which tells it from a token, and by which a leaked key is found."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}", re.ASCII)
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_SECRET_BYTES: Final = 32
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNKNOWN: Final = "the API key is not known here"


class ApiKey(Struct, frozen=True):
    """A line of the file."""

    name: str
    digest: str
    expires_ns: int | None = None
    groups: frozenset[str] = frozenset()

    @property
    def proof(self) -> str:
        """Digest of the whole line, on which an identity rests: a changed line is another key."""
        said = f"{self.name} {self.digest} {self.expires_ns} {','.join(sorted(self.groups))}"
        return hashlib.sha256(said.encode()).hexdigest()


class ApiKeys(Struct, frozen=True):
    """The keys there are, by name, and what identities by them rest on."""

    by_name: Mapping[str, tuple[ApiKey, ...]]
    proofs: frozenset[str]

    def identify(self, text: str, now_ns: int) -> Identity:
        """Return the identity of a key.

        Every digest of the name is compared, each in a time that does not depend on where it
        differs.

        Raises:
            UnauthenticatedError: The key is unknown or expired.
        """
        if len(text) > SECRET_LENGTH_MAX:
            raise UnauthenticatedError("unknown_key", _UNKNOWN)
        name = text.removeprefix(PREFIX).rpartition(".")[0]
        shown = digest_of(text)
        found = None
        for key in self.by_name.get(name, (_NO_KEY,)):
            if hmac.compare_digest(key.digest, shown):
                found = key
        if found is None:
            raise UnauthenticatedError("unknown_key", _UNKNOWN)
        if found.expires_ns is not None and found.expires_ns <= now_ns:
            raise UnauthenticatedError("expired", f"the API key of {name} has expired")
        principal = Principal(found.name, Method.KEY, found.groups)
        return Identity(principal, expires_ns=found.expires_ns, proof=f"key:{found.proof}")


_NO_KEY: Final = ApiKey("", f"sha256:{'0' * 64}")


def make_key(name: str) -> str:
    """A new key; only the caller has it.

    Raises:
        ValueError: The name cannot have one.
    """
    if not _NAME.fullmatch(name) or name == ANONYMOUS.name:
        msg = "a name is 1 to 64 of A-Z a-z 0-9 _ . @ -, begins with a letter or a digit, and is"
        raise ValueError(f"{msg} not `{ANONYMOUS.name}`")
    return f"{PREFIX}{name}.{secrets.token_urlsafe(_SECRET_BYTES)}"


def digest_of(text: str) -> str:
    """Return the stored form of a key."""
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"


def line_of(text: str, *, expires: datetime | None = None, groups: tuple[str, ...] = ()) -> str:
    """The line to store of a key that `make_key` made."""
    parts = [text.removeprefix(PREFIX).rpartition(".")[0], digest_of(text)]
    if expires is not None:
        parts.append(f"expires={expires.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}")
    if groups:
        parts.append(f"groups={','.join(groups)}")
    return "  ".join(parts)


def load_keys(path: Path) -> ApiKeys:
    """Read a file of keys.

    Raises:
        CorruptError: It is not as this module says, or anybody may write to it.
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        if path.stat().st_mode & stat.S_IWOTH:
            raise CorruptError("everybody may write to it: chmod o-w", where=str(path))
        data = file.read(API_KEYS_SIZE_MAX + 1)
    if len(data) > API_KEYS_SIZE_MAX:
        raise CorruptError(f"has more than {API_KEYS_SIZE_MAX} bytes", where=str(path))
    try:
        text = data.decode("ascii")
    except UnicodeDecodeError:
        raise CorruptError("has other characters than ASCII's", where=str(path)) from None
    return parse_keys(text, where=str(path))


def parse_keys(text: str, *, where: str) -> ApiKeys:
    """Read keys.

    Raises:
        CorruptError: A line is wrong; which one, and never what stands there.
    """
    by_name: dict[str, tuple[ApiKey, ...]] = {}
    digests: set[str] = set()
    proofs: set[str] = set()
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        key = _parse_line(words, f"{where}: line {number}")
        if key.digest in digests:
            raise CorruptError("repeats a digest", where=f"{where}: line {number}")
        digests.add(key.digest)
        proofs.add(key.proof)
        by_name[key.name] = (*by_name.get(key.name, ()), key)
    return ApiKeys(by_name, frozenset(proofs))


def _parse_line(words: list[str], where: str) -> ApiKey:
    if words[0].startswith(PREFIX):
        raise CorruptError("holds a key; store what `keys new` prints for that", where=where)
    if len(words) < 2 or not _NAME.fullmatch(words[0]) or words[0] == ANONYMOUS.name:
        raise CorruptError("is not NAME sha256:DIGEST", where=where)
    if not _DIGEST.fullmatch(words[1]):
        raise CorruptError("has no sha256: and 64 hexadecimal digits", where=where)
    expires_ns, groups = None, frozenset[str]()
    for word in words[2:]:
        what, _, value = word.partition("=")
        match what:
            case "expires" if expires_ns is None:
                expires_ns = _time(value, where)
            case "groups" if not groups and all(value.split(",")):
                groups = frozenset(value.split(","))
            case _:
                raise CorruptError("says more than expires= and groups=, once", where=where)
    return ApiKey(words[0], words[1], expires_ns, groups)


def _time(value: str, where: str) -> int:
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise CorruptError("expires= is not a time as 2027-01-01T00:00:00Z", where=where)
    return (found - _EPOCH) // timedelta(microseconds=1) * 1000
