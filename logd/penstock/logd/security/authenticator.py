"""Authenticates clients: by certificate, by token, or by API key; and whether that still holds.

An authenticated client is checked again with each request: an identity ends when its time is over,
when its API key's line is no longer in the file as it was, or when the key that signed its token is
no longer in the set. Failures are counted by endpoint and reason, and logged at a bounded rate,
never with the secret.
"""

import asyncio
import hashlib
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

import structlog

from penstock.base.clock import Clock
from penstock.logd.limits import SEARCHES_WAITING_MAX, TOKENS_REMEMBERED_MAX
from penstock.logd.security.api_keys import PREFIX, ApiKeys
from penstock.logd.security.jwt import KeySet, TokenKeys, TokenRules, UnknownKeyError, verify_token
from penstock.logd.security.principal import (
    ANONYMOUS,
    NOBODY,
    CertificateName,
    Identity,
    Method,
    Principal,
    UnauthenticatedError,
    check_known,
    identify_certificate,
)
from penstock.logd.security.renewal import Renewed

_LOGGED_PER_MINUTE: Final = 30
"""Failures that are logged a minute; all of them are counted."""

_SEARCH_S: Final = 15.0
"""Seconds that the keys of tokens have to be found; longer than one question takes."""

_MINUTE_NS: Final = 60_000_000_000

OnFailure = Callable[[str, str, str], None]
"""Called on a failed authentication: endpoint, reason, address. Called on any thread."""

_log = structlog.get_logger()


class Authenticator:
    """Used on any thread.

    Args:
        clock: Clock of the system.
        required: Whether every client must authenticate.
        certificate_name: Name of a certificate that is its principal's.
        tokens: Rules for tokens, and their keys; None: none are accepted.
        keys: API keys; None: none are taken.
        searches_waiting_max: Tokens with unknown keys that wait for the issuer at a time.
        tokens_remembered_max: Verified tokens that need no verification when they come again.

    Attributes:
        required: The argument.
        succeeded, failed: Counts by endpoint, and by endpoint and reason.
        on_failure: Told of failures.
    """

    def __init__(  # noqa: PLR0913 - what is taken, and how much of it
        self,
        clock: Clock,
        *,
        required: bool = False,
        certificate_name: CertificateName = CertificateName.CN,
        tokens: tuple[TokenRules, TokenKeys] | None = None,
        keys: Renewed[ApiKeys] | None = None,
        searches_waiting_max: int = SEARCHES_WAITING_MAX,
        tokens_remembered_max: int = TOKENS_REMEMBERED_MAX,
    ) -> None:
        self.required = required
        self.succeeded: Counter[str] = Counter()
        self.failed: Counter[tuple[str, str]] = Counter()
        self.on_failure: OnFailure = _nobody_listens
        self._clock = clock
        self._certificate_name = certificate_name
        self._tokens = tokens
        self._keys = keys
        self._searches_waiting_max = searches_waiting_max
        self._tokens_remembered_max = tokens_remembered_max
        self._lock = threading.Lock()
        self._verified: dict[bytes, Identity] = {}
        self._verified_with = KeySet({})
        self._searching = 0  # on the event loop
        self._logged = 0
        self._logged_since_ns = 0

    # Finding out who.

    def certificate(self, der: bytes | None) -> Identity:
        """Whom the certificate of a connection names; NOBODY without one.

        Raises:
            UnauthenticatedError: It names no principal.
        """
        return NOBODY if der is None else identify_certificate(der, self._certificate_name)

    def secret(self, text: str) -> Identity:
        """Return the identity of a token or API key, as far as it is known at once.

        Raises:
            UnknownKeyError: A token's key is not known here; `secret_later` searches for it.
            UnauthenticatedError: The secret is invalid.
        """
        if text.startswith(PREFIX):
            if self._keys is None:
                raise UnauthenticatedError("not_taken", "API keys are not taken here")
            return self._keys.value.identify(text, self._clock.unix_ns())
        if self._tokens is None:
            message = "no token or API key is taken here"
            if self._keys is not None:
                message = f"this is no API key ({PREFIX}...), and no token is taken here"
            raise UnauthenticatedError("not_taken", message)
        return self._token(text, *self._tokens)

    async def secret_later(self, text: str) -> Identity:
        """Return the identity of a token or API key; search for new keys of tokens.

        Raises:
            UnauthenticatedError: The secret is invalid.
        """
        try:
            return self.secret(text)
        except UnknownKeyError:
            searching = self._search()
        if searching is None:  # asked a moment ago, and perhaps answered since
            return self.secret(text)
        if self._searching >= self._searches_waiting_max:
            message = "many tokens with unknown keys wait for the issuer's answer; try again later"
            raise UnauthenticatedError("busy", message)
        self._searching += 1
        try:
            async with asyncio.timeout(_SEARCH_S):
                await asyncio.shield(asyncio.wrap_future(searching))
        except TimeoutError:
            pass
        finally:
            self._searching -= 1
        return self.secret(text)

    def secret_promptly(self, text: str) -> Identity:
        """Return the identity without waiting; a token's new key is known at the next call.

        Raises:
            UnauthenticatedError: The secret is invalid, as far as is known at once.
        """
        try:
            return self.secret(text)
        except UnknownKeyError:
            self._search()
            raise

    # Whether it still holds.

    def principal(self, identity: Identity) -> Principal:
        """Return the principal of a request.

        Raises:
            UnauthenticatedError: It is anonymous where authentication is required, or has expired.
        """
        if identity.principal.is_anonymous:
            return check_known(identity).principal if self.required else ANONYMOUS
        if identity.expires_ns is not None and identity.expires_ns <= self._clock.unix_ns():
            message = f"what {identity.principal.name} was known by has expired; get a new one"
            raise UnauthenticatedError("expired", message)
        if self._tokens is not None and identity.principal.method is Method.TOKEN:
            _check_fresh(self._tokens[1])
        if not self._stands(identity.proof):
            message = f"what {identity.principal.name} was known by was taken back"
            raise UnauthenticatedError("revoked", message)
        return identity.principal

    # Telling.

    def note_success(self, endpoint: str) -> None:
        """Count an authentication at an endpoint, once for each connection or call."""
        self.succeeded[endpoint] += 1

    def note_failure(self, endpoint: str, error: UnauthenticatedError, peer: str) -> None:
        """Somebody was not."""
        self.failed[endpoint, error.reason] += 1
        self.on_failure(endpoint, error.reason, peer)
        with self._lock:
            now_ns = self._clock.monotonic_ns()
            if now_ns - self._logged_since_ns >= _MINUTE_NS:
                self._logged, self._logged_since_ns = 0, now_ns
            self._logged += 1
            if self._logged > _LOGGED_PER_MINUTE:
                return
        _log.warning("authentication_failed", endpoint=endpoint, reason=error.reason, peer=peer)

    # Parts.

    def _token(self, text: str, rules: TokenRules, source: TokenKeys) -> Identity:
        """Verified once: one that comes again with each call costs a digest."""
        _check_fresh(source)
        keys, digest = source.keys, hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        now_ns = self._clock.unix_ns()
        with self._lock:
            if self._verified_with is not keys:
                self._verified.clear()
                self._verified_with = keys
            known = self._verified.get(digest)
        if known is not None and known.expires_ns is not None and now_ns < known.expires_ns:
            return known
        identity = verify_token(text, keys, rules, now_ns)
        with self._lock:
            if self._verified_with is keys:
                if len(self._verified) >= self._tokens_remembered_max:
                    self._verified.pop(next(iter(self._verified)))
                self._verified[digest] = identity
        return identity

    def _search(self) -> Future[None] | None:
        return None if self._tokens is None else self._tokens[1].search()

    def _stands(self, proof: str) -> bool:
        kind, _, what = proof.partition(":")
        match kind:
            case "key":
                return self._keys is not None and what in self._keys.value.proofs
            case "jwk":
                return self._tokens is not None and what in self._tokens[1].keys.digests
            case _:
                return True


def _check_fresh(source: TokenKeys) -> None:
    """Refuse tokens whose keys no server has confirmed for long.

    Raises:
        UnauthenticatedError: They are stale.
    """
    if source.stale:
        message = "no token is taken now: their keys have not been confirmed for too long"
        raise UnauthenticatedError("stale_keys", message)


def _nobody_listens(endpoint: str, reason: str, peer: str) -> None:
    """Failures are logged and counted; nothing else reports them."""
    del endpoint, reason, peer
