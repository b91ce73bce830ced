"""Tokens: whom they name, and everything that makes one worthless."""

import json

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given, settings
from hypothesis import strategies as st
from jwt.algorithms import RSAAlgorithm

from penstock.logd.errors import CorruptError
from penstock.logd.security.jwt import (
    ALGORITHMS,
    TokenRules,
    UnknownKeyError,
    parse_key_set,
    verify_token,
)
from penstock.logd.security.principal import Method, Principal, UnauthenticatedError
from tests.support.tokens import AUDIENCE, ISSUER, Issuer

NOW_S = 1_800_000_000
NOW_NS = NOW_S * 10**9
ISSUED = Issuer()
KEYS = parse_key_set(ISSUED.key_set(), where="jwks")
RULES = TokenRules(issuer=ISSUER, audience=AUDIENCE, groups_claim="groups")


def refusal(token: str, rules: TokenRules = RULES) -> str:
    """The reason for which a token is refused."""
    with pytest.raises(UnauthenticatedError) as refused:
        verify_token(token, KEYS, rules, NOW_NS)
    assert refused.value.code == "UNAUTHENTICATED"
    assert token not in str(refused.value)
    return refused.value.reason


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_good_token_names_its_principal(algorithm: str) -> None:
    token = ISSUED.token("alice", NOW_S, algorithm, groups=["billing", "ops"])
    identity = verify_token(token, KEYS, RULES, NOW_NS)
    assert identity.principal.name == "alice"
    assert identity.principal.method is Method.TOKEN
    assert identity.principal.groups == {"billing", "ops"}
    assert identity.expires_ns == (NOW_S + 3600 + 30) * 10**9
    assert identity.proof == f"jwk:{KEYS.keys[ISSUED.kid(algorithm)].digest}"


def test_an_unsigned_token_is_worthless() -> None:
    assert refusal(ISSUED.forge_none("alice", NOW_S)) == "algorithm"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_public_key_is_no_secret_to_sign_with(algorithm: str) -> None:
    assert refusal(ISSUED.forge_hs256("alice", NOW_S, algorithm)) == "algorithm"


def test_a_key_verifies_with_its_own_algorithm_only() -> None:
    assert refusal(ISSUED.token("alice", NOW_S, "RS256", kid=ISSUED.kid("ES256"))) == "algorithm"


def test_a_token_of_another_issuers_key_is_worthless() -> None:
    forged = Issuer().token("alice", NOW_S, kid=ISSUED.kid("ES256"))
    assert refusal(forged) == "signature"


def test_a_token_with_a_key_of_its_own_is_not_believed() -> None:
    other = Issuer("2")
    assert refusal(other.token("alice", NOW_S)) == "unknown_key"
    with pytest.raises(UnknownKeyError):
        verify_token(other.token("alice", NOW_S), KEYS, RULES, NOW_NS)


def test_without_a_key_id_there_must_be_only_one_key() -> None:
    bare = ISSUED.token("alice", NOW_S, kid=None)
    assert refusal(bare) == "unknown_key"
    alone = parse_key_set(ISSUED.key_set("ES256"), where="jwks")
    assert verify_token(bare, alone, RULES, NOW_NS).principal.name == "alice"


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"aud": "another"}, "audience"),
        ({"aud": ["another", "third"]}, "audience"),
        ({"aud": None}, "audience"),
        ({"aud": {"penstock": 1}}, "audience"),
        ({"iss": "https://elsewhere.example"}, "issuer"),
        ({"iss": None}, "issuer"),
        ({"exp": NOW_S - 30}, "expired"),
        ({"exp": None}, "malformed"),
        ({"exp": "tomorrow"}, "malformed"),
        ({"exp": True}, "malformed"),
        ({"exp": 1e300}, "malformed"),
        ({"nbf": NOW_S + 31}, "not_yet"),
        ({"nbf": "x"}, "malformed"),
        ({"sub": None}, "name"),
        ({"sub": ""}, "name"),
        ({"sub": "anonymous"}, "name"),
        ({"sub": "group:ops"}, "name"),
        ({"sub": "a\nb"}, "name"),
        ({"sub": "x" * 257}, "name"),
        ({"groups": [1]}, "groups"),
        ({"groups": {"a": 1}}, "groups"),
        ({"groups": [f"g{number}" for number in range(257)]}, "groups"),
    ],
)
def test_claims_that_are_wrong_are_refused_by_name(claims: dict[str, object], reason: str) -> None:
    assert refusal(_raw(claims)) == reason


def _raw(claims: dict[str, object]) -> str:
    """A token that PyJWT would not make: it looks at some claims before it signs."""
    import jwt

    made = ISSUED.claims("alice", NOW_S, **claims)
    key = ISSUED.key("ES256")
    payload = json.dumps(made).encode()
    return jwt.PyJWS().encode(payload, key, "ES256", headers={"kid": ISSUED.kid()})


def named(token: str, rules: TokenRules = RULES) -> Principal:
    return verify_token(token, KEYS, rules, NOW_NS).principal


def test_clocks_may_differ_a_little() -> None:
    assert named(ISSUED.token("a", NOW_S, exp=NOW_S - 29)).name == "a"
    assert named(ISSUED.token("a", NOW_S, nbf=NOW_S + 30)).name == "a"


def test_an_audience_may_be_one_of_several() -> None:
    assert named(ISSUED.token("alice", NOW_S, aud=["other", AUDIENCE])).name == "alice"


def test_another_claim_may_be_the_name_and_groups_may_be_words() -> None:
    rules = TokenRules(issuer=ISSUER, audience=AUDIENCE, name_claim="email", groups_claim="scope")
    token = ISSUED.token("1234", NOW_S, email="alice@example.com", scope="read write")
    found = Principal("alice@example.com", Method.TOKEN, frozenset({"read", "write"}))
    assert named(token, rules) == found


def test_groups_count_only_where_they_are_asked_for() -> None:
    token = ISSUED.token("alice", NOW_S, groups=["ops"])
    rules = TokenRules(issuer=ISSUER, audience=AUDIENCE)
    assert verify_token(token, KEYS, rules, NOW_NS).principal.groups == frozenset()


@settings(max_examples=300)
@given(st.data())
def test_a_changed_token_is_never_believed(data: st.DataObject) -> None:
    token = ISSUED.token("alice", NOW_S, exp=NOW_S + 100)
    place = data.draw(st.integers(0, len(token) - 2))  # the last one has bits that say nothing
    letter = data.draw(st.sampled_from("ABCxyz019_-.="))
    changed = token[:place] + letter + token[place + 1 :]
    if changed != token:
        assert refusal(changed)


@given(st.text(max_size=200))
def test_any_text_is_refused_in_words(text: str) -> None:
    assert refusal(text + "!") == "malformed"


def test_an_oversized_token_is_not_looked_at() -> None:
    assert refusal(ISSUED.token("alice", NOW_S, pad="x" * 16_384)) == "malformed"


def test_keys_that_must_not_verify_are_passed_over() -> None:
    small = rsa.generate_private_key(public_exponent=65537, key_size=1024).public_key()
    weak = RSAAlgorithm.to_jwk(small, as_dict=True) | {"kid": "weak"}
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "secret"}
    unused = json.loads(ISSUED.key_set("ES256"))["keys"][0] | {"use": "enc", "kid": "enc"}
    other = json.loads(ISSUED.key_set("RS256"))["keys"][0] | {"alg": "PS256", "kid": "ps"}
    rubbish = [
        "x",
        {},
        {"kty": "RSA", "n": 1, "e": 2},
        {"kty": "EC", "crv": "P-256", "x": "", "y": ""},
    ]
    good = json.loads(ISSUED.key_set("EdDSA"))["keys"]
    listed = [weak, secret, unused, other, *rubbish, *good]
    keys = parse_key_set(json.dumps({"keys": listed}).encode(), where="jwks")
    assert set(keys.keys) == {ISSUED.kid("EdDSA")}


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b'{"keys": {}}',
        b'{"keys": []}',
        b'{"keys": [' + b"{}," * 64 + b"{}]}",
        b" " * (256 * 1024 + 1),
        ISSUED.key_set("ES256").replace(b"]", b", ") + ISSUED.key_set("ES256")[10:],
    ],
)
def test_a_document_without_keys_is_refused(document: bytes) -> None:
    with pytest.raises(CorruptError, match="jwks: "):
        parse_key_set(document, where="jwks")
