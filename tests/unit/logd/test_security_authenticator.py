"""Identities come from what is shown, are looked at again, and end; files are read again."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from penstock.logd.errors import CorruptError, UnavailableError
from penstock.logd.security.api_keys import line_of, load_keys, make_key
from penstock.logd.security.authenticator import Authenticator
from penstock.logd.security.jwt import REFRESH_S_MIN, FileKeys, TokenRules, UrlKeys
from penstock.logd.security.principal import (
    NOBODY,
    Identity,
    Method,
    Principal,
    UnauthenticatedError,
    bearer,
)
from penstock.logd.security.renewal import Renewed
from tests.support.tokens import AUDIENCE, ISSUER, Issuer

SECOND = 10**9
NOW_S = 1_800_000_000
AGE_S_MAX = 3600


class Clock:
    """Both clocks, as a test sets them."""

    def __init__(self) -> None:
        self.now_ns = NOW_S * SECOND

    def monotonic_ns(self) -> int:
        return self.now_ns

    def unix_ns(self) -> int:
        return self.now_ns


class Url:
    """Answers with what a test puts there."""

    def __init__(self, answer: bytes) -> None:
        self.answer: bytes | Exception = answer
        self.asked = 0

    def __call__(self) -> object:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return json.loads(self.answer)


@pytest.fixture
def clock() -> Clock:
    return Clock()


WORKER = ThreadPoolExecutor(1)
"""Asks for keys; what it was given before is done when it has done what it is given now."""


def with_url(
    url: Url, clock: Clock, refresh_s: float = 300, **limits: Any
) -> tuple[Authenticator, UrlKeys]:
    keys = UrlKeys(
        url,
        where="https://keys",
        worker=WORKER,
        clock=clock,
        refresh_s=refresh_s,
        age_s_max=AGE_S_MAX,
    )
    rules = TokenRules(issuer=ISSUER, audience=AUDIENCE)
    return Authenticator(clock, required=True, tokens=(rules, keys), **limits), keys


def look(keys: UrlKeys, *, anyway: bool = False) -> None:
    """Look, and have what is asked by that answered."""
    keys.look(anyway=anyway)
    WORKER.submit(int).result()


def reason(refused: pytest.ExceptionInfo[UnauthenticatedError]) -> str:
    return refused.value.reason


async def test_an_unknown_key_has_the_url_asked_once_for_all_who_wait(clock: Clock) -> None:
    old, new = Issuer("1"), Issuer("2")
    url = Url(old.key_set())
    authenticator, keys = with_url(url, clock)
    look(keys)
    assert (url.asked, keys.problem) == (1, "")
    url.answer = new.key_set()
    token = new.token("alice", NOW_S)
    with pytest.raises(UnauthenticatedError) as refused:  # asked a moment ago
        await authenticator.secret_later(token)
    assert (reason(refused), url.asked) == ("unknown_key", 1)
    clock.now_ns += int(REFRESH_S_MIN * SECOND)
    found = await asyncio.gather(*(authenticator.secret_later(token) for _ in range(10)))
    assert {identity.principal.name for identity in found} == {"alice"}
    assert url.asked == 2


async def test_forged_key_ids_do_not_flood_whoever_issues_keys(clock: Clock) -> None:
    url = Url(Issuer().key_set())
    authenticator, keys = with_url(url, clock)
    look(keys)
    for number in range(100):
        clock.now_ns += SECOND
        token = Issuer(f"x{number}").token("mallory", NOW_S)
        with pytest.raises(UnauthenticatedError):
            await authenticator.secret_later(token)
    assert url.asked == 1 + 10


class Gated(Url):
    """Answers when a test says so."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(answer)
        self.may = threading.Event()

    @override
    def __call__(self) -> object:
        self.may.wait(60)
        return super().__call__()


def test_who_must_not_wait_is_known_the_next_time(clock: Clock) -> None:
    issuer = Issuer()
    url = Gated(issuer.key_set())
    authenticator, _ = with_url(url, clock)
    token = issuer.token("alice", NOW_S)
    for _ in range(3):
        with pytest.raises(UnauthenticatedError) as refused:
            authenticator.secret_promptly(token)
        assert reason(refused) == "unknown_key"
    url.may.set()
    WORKER.submit(int).result()
    assert url.asked == 1
    assert authenticator.secret_promptly(token).principal == Principal("alice", Method.TOKEN)


async def test_few_wait_for_an_answer(clock: Clock) -> None:
    issuer = Issuer()
    url = Gated(issuer.key_set())
    authenticator, _ = with_url(url, clock, searches_waiting_max=2)
    token = issuer.token("alice", NOW_S)
    waiting = [asyncio.create_task(authenticator.secret_later(token)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(UnauthenticatedError) as refused:
        await authenticator.secret_later(token)
    assert reason(refused) == "busy"
    url.may.set()
    assert {found.principal.name for found in await asyncio.gather(*waiting)} == {"alice"}
    assert url.asked == 1


def test_keys_that_nobody_confirms_are_good_for_a_time_only(clock: Clock) -> None:
    issuer = Issuer()
    url = Url(issuer.key_set())
    authenticator, keys = with_url(url, clock)
    look(keys)
    token = issuer.token("alice", NOW_S, exp=NOW_S + 10 * AGE_S_MAX)
    identity = authenticator.secret(token)
    url.answer = UnavailableError("https://keys: away")
    clock.now_ns += AGE_S_MAX * SECOND
    look(keys)
    assert authenticator.principal(identity).name == "alice"
    clock.now_ns += 1
    for use in (lambda: authenticator.secret(token), lambda: authenticator.principal(identity)):
        with pytest.raises(UnauthenticatedError) as refused:
            use()
        assert reason(refused) == "stale_keys"
    assert "https://keys: away; no token is taken any more" in keys.problem
    url.answer = issuer.key_set()
    look(keys, anyway=True)
    assert keys.problem == ""
    assert authenticator.principal(identity).name == "alice"


def test_keys_of_a_file_that_has_gone_are_good_for_a_time_only(
    clock: Clock, tmp_path: Path
) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(Issuer().key_set())
    keys = FileKeys(path, clock, age_s_max=AGE_S_MAX)
    path.unlink()
    keys.look()
    assert keys.keys.keys
    assert "no token" not in keys.problem
    clock.now_ns += AGE_S_MAX * SECOND + 1
    keys.look()
    assert not keys.keys.keys
    assert "no token is taken any more" in keys.problem
    path.write_bytes(Issuer().key_set())
    keys.look()
    assert keys.keys.keys
    assert keys.problem == ""


def test_a_url_that_fails_keeps_the_keys_and_says_so(clock: Clock) -> None:
    issuer = Issuer()
    url = Url(issuer.key_set())
    authenticator, keys = with_url(url, clock)
    assert "has not answered yet" in keys.problem
    look(keys)
    token = issuer.token("alice", NOW_S)
    for answer in (UnavailableError("https://keys: away"), b"{}", b'{"keys": [{}]}'):
        url.answer = answer
        clock.now_ns += 300 * SECOND
        look(keys)
        assert keys.problem.startswith("auth.tokens.jwks_url: https://keys: ")
        assert authenticator.secret(token).principal.name == "alice"
    url.answer = issuer.key_set()
    look(keys)  # too soon
    assert keys.problem
    clock.now_ns += int(REFRESH_S_MIN * SECOND)
    look(keys)
    assert keys.problem == ""


def test_an_identity_ends_with_its_time_and_with_the_key_that_signed_it(clock: Clock) -> None:
    issuer = Issuer()
    url = Url(issuer.key_set())
    authenticator, keys = with_url(url, clock)
    look(keys)
    identity = authenticator.secret(issuer.token("alice", NOW_S, exp=NOW_S + 60))
    assert authenticator.principal(identity).name == "alice"
    clock.now_ns = (NOW_S + 90) * SECOND - 1
    assert authenticator.principal(identity).name == "alice"
    clock.now_ns += 1
    with pytest.raises(UnauthenticatedError) as refused:
        authenticator.principal(identity)
    assert reason(refused) == "expired"
    clock.now_ns = NOW_S * SECOND
    url.answer = Issuer().key_set()  # other keys, of the same ids
    look(keys, anyway=True)
    with pytest.raises(UnauthenticatedError) as refused:
        authenticator.principal(identity)
    assert reason(refused) == "revoked"


def test_a_token_that_comes_again_is_looked_at_again(clock: Clock) -> None:
    issuer = Issuer()
    url = Url(issuer.key_set())
    authenticator, keys = with_url(url, clock)
    look(keys)
    token = issuer.token("alice", NOW_S, exp=NOW_S + 60)
    assert authenticator.secret(token) is authenticator.secret(token)
    clock.now_ns = (NOW_S + 90) * SECOND
    with pytest.raises(UnauthenticatedError) as refused:
        authenticator.secret(token)
    assert reason(refused) == "expired"
    clock.now_ns = NOW_S * SECOND
    url.answer = Issuer().key_set()
    look(keys, anyway=True)
    with pytest.raises(UnauthenticatedError) as refused:
        authenticator.secret(token)
    assert reason(refused) == "signature"


def test_what_is_remembered_is_bounded(clock: Clock) -> None:
    issuer = Issuer()
    authenticator, keys = with_url(Url(issuer.key_set()), clock, tokens_remembered_max=3)
    look(keys)
    tokens = [issuer.token(f"user-{number}", NOW_S) for number in range(10)]
    first = [authenticator.secret(token) for token in tokens]
    again = [authenticator.secret(token) for token in tokens[-3:]]
    assert all(one is other for one, other in zip(first[-3:], again, strict=True))
    assert authenticator.secret(tokens[-4]) is not first[-4], "it is verified once more"


def test_nobody_is_let_in_only_where_nobody_needs_to_be_known(clock: Clock) -> None:
    assert Authenticator(clock).principal(NOBODY).is_anonymous
    with pytest.raises(UnauthenticatedError) as refused:
        Authenticator(clock, required=True).principal(NOBODY)
    assert reason(refused) == "nobody"
    for text in ("a.b.c", make_key("a")):
        with pytest.raises(UnauthenticatedError) as refused:
            Authenticator(clock).secret(text)
        assert reason(refused) == "not_taken"


def test_an_expired_identity_is_nobody_even_where_nobody_needs_to_be_known(clock: Clock) -> None:
    identity = Identity(Principal("alice", Method.CERTIFICATE), expires_ns=clock.now_ns)
    with pytest.raises(UnauthenticatedError, match="expired"):
        Authenticator(clock).principal(identity)


def test_every_failure_is_counted_and_told(clock: Clock) -> None:
    told: list[tuple[str, str, str]] = []
    authenticator = Authenticator(clock)
    authenticator.on_failure = lambda *facts: told.append(facts)
    for _ in range(100):
        authenticator.note_failure("fetch", UnauthenticatedError("malformed", "x"), "192.0.2.1:5")
    assert authenticator.failed == {("fetch", "malformed"): 100}
    assert told == [("fetch", "malformed", "192.0.2.1:5")] * 100


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic x", "x"])
def test_a_header_without_a_token(header: str) -> None:
    with pytest.raises(UnauthenticatedError):
        bearer(header)
    assert bearer("bearer  abc ") == "abc"


def test_a_file_is_read_again_when_it_changes_and_kept_when_it_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    first, second = make_key("first"), make_key("second")
    path.write_text(line_of(first))
    held = Renewed("keys", (path,), lambda: load_keys(path))
    loaded = held.value
    held.look()
    assert held.value is loaded
    path.write_text("rubbish\n")
    held.look()
    assert "line 1" in held.problem
    assert held.value is loaded
    path.unlink()
    held.look()
    assert "No such file" in held.problem
    assert set(held.value.by_name) == {"first"}
    path.write_text(line_of(second))
    held.look()
    assert held.problem == ""
    assert set(held.value.by_name) == {"second"}
    assert (held.loaded, held.failed) == (1, 2)


def test_a_link_that_is_swapped_is_a_change(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(line_of(make_key(name)))
    link = tmp_path / "keys"
    link.symlink_to(tmp_path / "one")
    held = Renewed("keys", (link,), lambda: load_keys(link))
    (tmp_path / "new").symlink_to(tmp_path / "two")
    (tmp_path / "new").replace(link)
    held.look()
    assert set(held.value.by_name) == {"two"}


def test_what_was_never_sound_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("rubbish")
    with pytest.raises(CorruptError):
        Renewed("keys", (path,), lambda: load_keys(path))


def test_an_identity_ends_when_its_line_says_something_else(clock: Clock, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    key = make_key("billing")
    path.write_text(line_of(key, groups=("ops", "eu")))
    held = Renewed("keys", (path,), lambda: load_keys(path))
    authenticator = Authenticator(clock, keys=held)
    identity = authenticator.secret(key)
    path.write_text(f"# ours\n{line_of(make_key('other'))}\n{line_of(key, groups=('eu', 'ops'))}")
    held.look()
    assert authenticator.principal(identity).groups == {"ops", "eu"}
    past = datetime(2026, 1, 1, tzinfo=UTC)
    for line in (line_of(key, groups=("eu",)), line_of(key, groups=("ops", "eu"), expires=past)):
        path.write_text(line)
        held.look()
        with pytest.raises(UnauthenticatedError) as refused:
            authenticator.principal(identity)
        assert reason(refused) == "revoked"
