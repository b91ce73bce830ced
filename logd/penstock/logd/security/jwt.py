"""JSON Web Tokens (RFC 7519, RFC 8725) and the keys that sign them (RFC 7517), from file or URL.

A token is believed when a key of the set has signed it with the key's own algorithm, and it names
this issuer and this audience, and its time has come and is not over. `alg` in the token's header
chooses nothing: it must only say what the key is for, so that `none` and HS256 with a public key as
secret come to nothing. No I/O; the clock is an input.

The public keys that tokens are signed with: a JWKS document (RFC 7517).

Which algorithm a key is for is decided here, by its kind, and never by the token that names it: RSA
of 2048 bits or more is for RS256, P-256 for ES256, Ed25519 for EdDSA. Other keys, symmetric ones
above all, are skipped.

Where the keys of tokens come from: a file, or an https URL that is asked again and again.

PyJWT's `PyJWKClient` asks, over TLS, with 10 s for each step and following no redirection. A URL
that does not answer, or says rubbish, changes nothing for a time: the keys before stay. Then they
are stale, and no token is taken any more: one of them may have been taken back. A token whose key
is not known has the URL asked at once, but not more often than every `REFRESH_S_MIN` seconds:
forged tokens must not make logd flood their issuer.
"""

import hashlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson
import structlog
from msgspec import Struct

from penstock.base.clock import Clock
from penstock.base.lazy_module import LazyModule
from penstock.logd.errors import CorruptError, UnavailableError
from penstock.logd.limits import (
    KEY_SET_KEYS_MAX,
    KEY_SET_SIZE_MAX,
    PRINCIPAL_GROUPS_MAX,
    PRINCIPAL_NAME_LENGTH_MAX,
    SECRET_LENGTH_MAX,
)
from penstock.logd.security.principal import (
    Identity,
    Method,
    Principal,
    UnauthenticatedError,
    check_name,
)
from penstock.logd.security.renewal import Renewed
from penstock.logd.security.tls import TlsSource

if TYPE_CHECKING:
    import jwt
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey
else:
    jwt = LazyModule("jwt")
    serialization = LazyModule("cryptography.hazmat.primitives.serialization")
    ec = LazyModule("cryptography.hazmat.primitives.asymmetric.ec")
    ed25519 = LazyModule("cryptography.hazmat.primitives.asymmetric.ed25519")
    rsa = LazyModule("cryptography.hazmat.primitives.asymmetric.rsa")

ALGORITHMS: Final = ("RS256", "ES256", "EdDSA")
"""Accepted algorithms of signatures."""

_RSA_BITS_MIN: Final = 2048
"""NIST SP 800-131A: fewer are not to be used."""


class VerifyingKey(Struct, frozen=True):
    """A key of a set.

    Attributes:
        kid: Its id; empty when it has none.
        algorithm: Algorithm of the signatures.
        key: Key of the library cryptography.
        digest: Digest of the key itself: another one under the same id has another.
    """

    kid: str
    algorithm: str
    key: "PublicKey"
    digest: str


@dataclass(frozen=True)
class KeySet:
    """Keys that can be used, by id."""

    keys: Mapping[str, VerifyingKey]

    @cached_property
    def digests(self) -> frozenset[str]:
        """Digests of all keys."""
        return frozenset(key.digest for key in self.keys.values())

    def find(self, kid: str | None) -> VerifyingKey | None:
        """The key of an id; without one, the only key there is."""
        if kid is None:
            return next(iter(self.keys.values())) if len(self.keys) == 1 else None
        return self.keys.get(kid)


def parse_key_set(data: bytes, *, where: str) -> KeySet:
    """Read a JWKS document.

    Raises:
        CorruptError: It is too large or no JSON, or as `to_key_set` says.
    """
    if len(data) > KEY_SET_SIZE_MAX:
        raise CorruptError(f"has more than {KEY_SET_SIZE_MAX} bytes", where=where)
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise CorruptError("is not JSON", where=where) from None
    return to_key_set(document, where=where)


def to_key_set(document: object, *, where: str) -> KeySet:
    """Take the keys that can be used from a JWKS document.

    Raises:
        CorruptError: It is none, or has no key that can be used, or two of one id.
    """
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list) or len(listed) > KEY_SET_KEYS_MAX:
        message = f"is not a JWKS document with up to {KEY_SET_KEYS_MAX} keys"
        raise CorruptError(message, where=where)
    keys: dict[str, VerifyingKey] = {}
    for key in _usable(listed):
        if key.kid in keys:
            raise CorruptError(f"has two keys with the id {key.kid!r}", where=where)
        keys[key.kid] = key
    if not keys:
        kinds = "RSA of 2048 bits, P-256 or Ed25519"
        raise CorruptError(f"has no key that can verify tokens: {kinds}", where=where)
    return KeySet(keys)


def _usable(listed: list[Any]) -> Iterator[VerifyingKey]:
    for item in listed:
        if not isinstance(item, dict) or item.get("use", "sig") != "sig":
            continue
        kid = item.get("kid", "")
        if not isinstance(kid, str):
            continue
        try:
            key = jwt.PyJWK(item).key
        except (jwt.PyJWTError, ValueError, TypeError, KeyError):
            continue
        algorithm = _algorithm_of(key)
        if algorithm and item.get("alg", algorithm) == algorithm:
            yield VerifyingKey(kid, algorithm, key, _digest_of(key))


def _digest_of(key: "PublicKey") -> str:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(key.public_bytes(serialization.Encoding.DER, form)).hexdigest()


def _algorithm_of(key: object) -> str:
    """Empty when it is for none that is taken; so a private key that stands there by mistake."""
    match key:
        case rsa.RSAPublicKey() if key.key_size >= _RSA_BITS_MIN:
            return "RS256"
        case ec.EllipticCurvePublicKey() if key.curve.name == "secp256r1":
            return "ES256"
        case ed25519.Ed25519PublicKey():
            return "EdDSA"
        case _:
            return ""


_FORM: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*", re.ASCII)
_NS_PER_S: Final = 1_000_000_000
_TIME_MAX: Final = 1 << 40
"""Seconds; a later time is none."""


class UnknownKeyError(UnauthenticatedError):
    """The key that signed a token is not in the set; it may be new."""

    def __init__(self) -> None:
        super().__init__("unknown_key", "the token is signed with a key that is not known here")


class TokenRules(Struct, frozen=True, kw_only=True):
    """Rules for tokens.

    Attributes:
        issuer: `iss` must be this.
        audience: `aud` must be this, or have it among others.
        name_claim: Claim with the principal's name.
        groups_claim: Claim with its groups: a list of texts or words separated by blanks.
        clock_skew_s: Seconds by which the issuer's clock and this one may differ.
    """

    issuer: str
    audience: str
    name_claim: str = "sub"
    groups_claim: str | None = None
    clock_skew_s: int = 30


def verify_token(token: str, keys: KeySet, rules: TokenRules, now_ns: int) -> Identity:
    """Whom a token names.

    Args:
        token: The received token.
        keys: Keys that may have signed it.
        rules: Further rules for it.
        now_ns: Unix time.

    Raises:
        UnknownKeyError: Its key is not in the set.
        UnauthenticatedError: Any other reason; never with a part of the token.
    """
    if len(token) > SECRET_LENGTH_MAX or not _FORM.fullmatch(token):
        raise UnauthenticatedError("malformed", "what was shown is no signed token (JWT)")
    key = _key_of(token, keys)
    try:
        found = jwt.PyJWS().decode_complete(token, key.key, algorithms=[key.algorithm])
        claims = orjson.loads(found["payload"])
    except jwt.InvalidSignatureError:
        raise UnauthenticatedError("signature", "the token's signature is wrong") from None
    except (jwt.PyJWTError, ValueError):
        raise UnauthenticatedError("malformed", "the token is malformed") from None
    if not isinstance(claims, dict):
        raise UnauthenticatedError("malformed", "the token has no claims")
    _check_addressed(claims, rules)
    expires_ns = _check_times(claims, rules, now_ns)
    name = check_name(claims.get(rules.name_claim))
    principal = Principal(name, Method.TOKEN, _groups(claims, rules))
    return Identity(principal, expires_ns=expires_ns, proof=f"jwk:{key.digest}")


def _key_of(token: str, keys: KeySet) -> VerifyingKey:
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError):
        raise UnauthenticatedError("malformed", "the token's header is malformed") from None
    if "crit" in header:  # RFC 7515, 4.1.11: what must be understood, and none of it is
        raise UnauthenticatedError("malformed", "the token's header has critical extensions")
    kid = header.get("kid")
    key = keys.find(kid) if kid is None or isinstance(kid, str) else None
    if key is None:
        raise UnknownKeyError
    if header.get("alg") != key.algorithm:
        message = f"the token's key is for {key.algorithm}, and its header says otherwise"
        raise UnauthenticatedError("algorithm", message)
    return key


def _check_addressed(claims: Mapping[str, Any], rules: TokenRules) -> None:
    if claims.get("iss") != rules.issuer:
        raise UnauthenticatedError("issuer", "the token is of another issuer")
    audience = claims.get("aud")
    if rules.audience not in (audience if isinstance(audience, list) else [audience]):
        raise UnauthenticatedError("audience", "the token is for another audience")


def _check_times(claims: Mapping[str, Any], rules: TokenRules, now_ns: int) -> int:
    """Return when the token expires, the skew included."""
    skew_ns = rules.clock_skew_s * _NS_PER_S
    expires_ns = _time_ns(claims, "exp")
    if expires_ns is None:
        raise UnauthenticatedError("malformed", "the token has no time at which it expires (`exp`)")
    if expires_ns + skew_ns <= now_ns:
        raise UnauthenticatedError("expired", "the token has expired; get a new one")
    begins_ns = _time_ns(claims, "nbf")
    if begins_ns is not None and begins_ns - skew_ns > now_ns:
        raise UnauthenticatedError("not_yet", "the token's time has not come (`nbf`)")
    return expires_ns + skew_ns


def _time_ns(claims: Mapping[str, Any], name: str) -> int | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _TIME_MAX:
        raise UnauthenticatedError("malformed", f"the token's `{name}` is no time")
    return int(value * _NS_PER_S)


def _groups(claims: Mapping[str, Any], rules: TokenRules) -> frozenset[str]:
    if rules.groups_claim is None:
        return frozenset()
    value = claims.get(rules.groups_claim, [])
    groups = value.split() if isinstance(value, str) else value
    if not isinstance(groups, list) or len(groups) > PRINCIPAL_GROUPS_MAX:
        message = f"the token's groups are no list of up to {PRINCIPAL_GROUPS_MAX} names"
        raise UnauthenticatedError("groups", message)
    for group in groups:
        if not isinstance(group, str) or not 0 < len(group) <= PRINCIPAL_NAME_LENGTH_MAX:
            raise UnauthenticatedError("groups", "the token's groups are not all names")
    return frozenset(groups)


REFRESH_S_MIN: Final = 10.0
"""Seconds between two questions that unknown keys give rise to."""

_STEP_S: Final = 10.0
"""Seconds for connecting to the issuer, and for each read of its answer."""

_EMPTY: Final = KeySet({})
_log = structlog.get_logger()

Fetch = Callable[[], object]
"""Gets a JWKS document; raises UnavailableError or CorruptError."""


class TokenKeys(Protocol):
    """Keys that may have signed a token. Used on any thread."""

    @property
    def keys(self) -> KeySet:
        """Keys known now; empty when they are stale."""

    @property
    def stale(self) -> bool:
        """True if the keys were not confirmed for too long."""

    @property
    def problem(self) -> str:
        """Why these may not be the right ones; empty when they are."""

    def look(self, *, anyway: bool = False) -> None:
        """Read or ask again, if it is time to, or `anyway`."""

    def search(self) -> Future[None] | None:
        """A key is missing: ask again soon; when that is done. None: asked a moment ago."""


class _Standing:
    """Keys, and since when they are unconfirmed: their issuer may have revoked one.

    Args:
        keys: At first.
        clock: Clock of the keys' age.
        age_s_max: Beyond which they are not used any more.
    """

    def __init__(self, keys: KeySet, clock: Clock, age_s_max: float) -> None:
        self._keys = keys
        self._clock = clock
        self._age_s_max = age_s_max
        self._confirmed_ns = clock.monotonic_ns()

    def confirm(self, keys: KeySet) -> None:
        """These are the right ones now."""
        self._confirmed_ns = self._clock.monotonic_ns()
        self._keys = keys

    @property
    def stale(self) -> bool:
        return self._clock.monotonic_ns() - self._confirmed_ns > self._age_s_max * 1e9

    @property
    def keys(self) -> KeySet:
        return _EMPTY if self.stale else self._keys

    def describe(self, problem: str) -> str:
        """A problem, with what it has come to."""
        if not self.stale:
            return problem
        since = f"for {self._age_s_max:g} s nothing has confirmed the keys"
        return f"{problem or 'auth.tokens'}; no token is taken any more: {since}"


class FileKeys:
    """Keys of a file. As `TokenKeys`.

    Args:
        path: The file.
        clock: Clock of the keys' age.
        age_s_max: Seconds for which they are valid when the file is missing or invalid.

    Raises:
        CorruptError: It has none.
        OSError: It cannot be read.
    """

    def __init__(self, path: Path, clock: Clock, *, age_s_max: float) -> None:
        self._held = Renewed("auth.tokens.jwks_file", (path,), lambda: _read(path))
        self._standing = _Standing(self._held.value, clock, age_s_max)

    @property
    def keys(self) -> KeySet:
        return self._standing.keys

    @property
    def stale(self) -> bool:
        return self._standing.stale

    @property
    def problem(self) -> str:
        return self._standing.describe(self._held.problem)

    def look(self, *, anyway: bool = False) -> None:
        self._held.look(anyway=anyway)
        if not self._held.problem:
            self._standing.confirm(self._held.value)

    def search(self) -> Future[None] | None:
        return None


class UrlKeys:
    """Keys of a URL. As `TokenKeys`; at first there are none.

    One question at a time is under way, on its own thread: no other thread waits for its answer
    but who searches.

    Args:
        fetch: Gets the document; as `jwks_fetch` makes it.
        where: The URL, for people.
        worker: Asks.
        clock: Clock of the pauses.
        refresh_s: Seconds after which it is asked again in any case.
        age_s_max: Seconds without an answer after which the keys before are used no more.
    """

    def __init__(
        self,
        fetch: Fetch,
        *,
        where: str,
        worker: Executor,
        clock: Clock,
        refresh_s: float,
        age_s_max: float,
    ) -> None:
        self._problem = f"auth.tokens.jwks_url: {where} has not answered yet"
        self._standing = _Standing(_EMPTY, clock, age_s_max)
        self._fetch = fetch
        self._where = where
        self._worker = worker
        self._clock = clock
        self._refresh_ns = int(refresh_s * 1e9)
        self._lock = threading.Lock()
        self._asked_ns: int | None = None
        self._asking: Future[None] | None = None

    @property
    def keys(self) -> KeySet:
        return self._standing.keys

    @property
    def stale(self) -> bool:
        return self._standing.stale

    @property
    def problem(self) -> str:
        return self._standing.describe(self._problem)

    def look(self, *, anyway: bool = False) -> None:
        self._ask(0 if anyway else int(REFRESH_S_MIN * 1e9) if self._problem else self._refresh_ns)

    def search(self) -> Future[None] | None:
        """Search for new keys; concurrent searches share one request."""
        return self._ask(int(REFRESH_S_MIN * 1e9))

    def _ask(self, age_ns: int) -> Future[None] | None:
        """Ask, unless that has begun less than `age_ns` ago; when the answer is there."""
        with self._lock:
            if self._asking is not None and not self._asking.done():
                return self._asking
            now_ns = self._clock.monotonic_ns()
            if self._asked_ns is not None and now_ns - self._asked_ns < age_ns:
                return None
            self._asked_ns = now_ns
            with suppress(RuntimeError):  # logd stops, and the worker takes nothing more
                self._asking = self._worker.submit(self._take_answer)
            return self._asking

    def _take_answer(self) -> None:
        try:
            keys = to_key_set(self._fetch(), where=self._where)
        except (UnavailableError, CorruptError) as error:
            problem = f"auth.tokens.jwks_url: {error}"
            if problem != self._problem:
                _log.error("jwks_fetch_failed", reason=problem, kept="previous")
            self._problem = problem
        else:
            self._standing.confirm(keys)
            self._problem = ""


def jwks_fetch(url: str, tls: TlsSource, *, timeout_s: float = _STEP_S) -> Fetch:
    """Return a function that gets the document of an https URL.

    Args:
        url: `https://HOST[:PORT]/PATH`.
        tls: Returns the context with the currently trusted authorities.
        timeout_s: Seconds for connecting, and for each read.
    """

    def fetch() -> object:
        # Without its caches: `UrlKeys` keeps what is known while the issuer is away, and bounds how
        # often it is asked then, which PyJWT does after an answer only.
        client = jwt.PyJWKClient(url, cache_jwk_set=False, timeout=timeout_s, ssl_context=tls())
        try:
            document: object = client.fetch_data()
        except jwt.PyJWKClientConnectionError as error:
            raise UnavailableError(f"{url}: {error.__cause__}") from None
        except OSError as error:  # while the answer was read
            raise UnavailableError(f"{url}: {str(error) or type(error).__name__}") from None
        except (jwt.PyJWTError, ValueError):
            raise CorruptError("is not a JWKS document", where=url) from None
        return document

    return fetch


def _read(path: Path) -> KeySet:
    with path.open("rb") as file:
        return parse_key_set(file.read(KEY_SET_SIZE_MAX + 1), where=str(path))
