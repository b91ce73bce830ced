"""API keys: only digests are stored, and nothing about a key is ever shown."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.logd.errors import CorruptError
from penstock.logd.security.api_keys import (
    PREFIX,
    line_of,
    load_keys,
    make_key,
    parse_keys,
)
from penstock.logd.security.principal import Method, UnauthenticatedError

NOW_NS = 1_800_000_000 * 10**9


def refusal(line: str, text: str) -> str:
    with pytest.raises(UnauthenticatedError) as refused:
        parse_keys(line, where="keys").identify(text, NOW_NS)
    assert not text or text not in str(refused.value)
    return refused.value.reason


def test_a_key_is_known_by_its_line() -> None:
    key = make_key("billing")
    line = line_of(key, expires=datetime(2027, 2, 1, tzinfo=UTC), groups=("ops", "eu"))
    assert key.rpartition(".")[2] not in line
    keys = parse_keys(f"# ours\n\n{line}\n", where="keys")
    identity = keys.identify(key, NOW_NS)
    assert identity.principal.name == "billing"
    assert identity.principal.method is Method.KEY
    assert identity.principal.groups == {"ops", "eu"}
    assert identity.expires_ns == int(datetime(2027, 2, 1, tzinfo=UTC).timestamp()) * 10**9
    assert keys.proofs == {identity.proof.removeprefix("key:")}


def test_no_two_keys_are_alike() -> None:
    assert len({make_key("a") for _ in range(100)}) == 100
    assert len(make_key("a").removeprefix(f"{PREFIX}a.")) == 43


def test_another_key_of_the_name_is_refused_as_one_of_nobody() -> None:
    line = line_of(make_key("billing"))
    assert refusal(line, make_key("billing")) == "unknown_key"
    assert refusal(line, make_key("other")) == "unknown_key"
    assert refusal(line, "") == "unknown_key"
    assert refusal(line, "x" * 100_000) == "unknown_key"
    assert refusal(line, "\udc80") == "unknown_key"


def test_a_key_ends_at_its_time() -> None:
    key = make_key("billing")
    assert refusal(line_of(key, expires=datetime(2026, 1, 1, tzinfo=UTC)), key) == "expired"


def test_a_name_may_have_two_keys_while_one_is_replaced() -> None:
    old, new = make_key("billing"), make_key("billing")
    keys = parse_keys(f"{line_of(old)}\n{line_of(new)}", where="keys")
    assert {keys.identify(key, NOW_NS).principal.name for key in (old, new)} == {"billing"}


@pytest.mark.parametrize(
    "line",
    [
        "billing",
        "billing sha256:12",
        f"billing md5:{'0' * 64}",
        f"bill/ing sha256:{'0' * 64}",
        f"anonymous sha256:{'0' * 64}",
        f"billing sha256:{'0' * 64} expires=tomorrow",
        f"billing sha256:{'0' * 64} expires=2027-01-01T00:00:00",
        f"billing sha256:{'0' * 64} groups=",
        f"billing sha256:{'0' * 64} groups=a groups=b",
        f"billing sha256:{'0' * 64} admin=yes",
        f"a sha256:{'0' * 64}\nb sha256:{'0' * 64}",
        "penstock-key.billing.s3cret",
    ],
)
def test_a_wrong_line_is_named_and_not_shown(line: str) -> None:
    with pytest.raises(CorruptError, match=r"^keys: line \d+: ") as refused:
        parse_keys(f"\n{line}", where="keys")
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("name", ["", "anonymous", "a b", "group:x", "-a", "x" * 65, "ä"])
def test_names_that_cannot_have_a_key(name: str) -> None:
    with pytest.raises(ValueError, match="name is 1 to 64"):
        make_key(name)


def test_a_file_that_everybody_may_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(line_of(make_key("billing")))
    path.chmod(0o640)
    assert set(load_keys(path).by_name) == {"billing"}
    path.chmod(0o646)
    with pytest.raises(CorruptError, match="chmod"):
        load_keys(path)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    for content in (b"\xff", b"#" * (4 * 1024 * 1024 + 1)):
        path.write_bytes(content)
        with pytest.raises(CorruptError, match=str(path)):
            load_keys(path)
