"""JSON Web Tokens (RFC 7519, RFC 8725): who signed one, for whom, and until when it holds.

A token is believed when a key of the set has signed it with the key's own algorithm, and it names
this issuer and this audience, and its time has come and is not over. `alg` in the token's header
chooses nothing: it must only say what the key is for, so that `none` and HS256 with a public key as
secret come to nothing. No I/O; the clock is an input.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import jwt
import orjson

from penstock.logd.limits import (
    PRINCIPAL_GROUPS_MAX,
    PRINCIPAL_NAME_LENGTH_MAX,
    SECRET_LENGTH_MAX,
)
from penstock.logd.security.identity import Identity, UnauthenticatedError, check_name
from penstock.logd.security.key_set import KeySet, VerifyingKey
from penstock.logd.security.principal import Method, Principal

_FORM: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*", re.ASCII)
_NS_PER_S: Final = 1_000_000_000
_TIME_MAX: Final = 1 << 40
"""Seconds; a later time is none."""


class UnknownKeyError(UnauthenticatedError):
    """The key that signed a token is not in the set; it may be new."""

    def __init__(self) -> None:
        super().__init__("unknown_key", "the token is signed with a key that is not known here")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """What is asked of tokens.

    Attributes:
        issuer: `iss` must be this.
        audience: `aud` must be this, or have it among others.
        name_claim: Whose value is the principal's name.
        groups_claim: Whose value, a list of texts or words separated by blanks, is its groups.
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
        token: As it came.
        keys: That may have signed it.
        rules: What else is asked of it.
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
    """When it ends, the skew included."""
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
