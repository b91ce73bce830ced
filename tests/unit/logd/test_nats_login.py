"""Seeds and credentials files: what is read, and what is said of those that are wrong."""

import base64
from pathlib import Path

import nkeys
import pytest

from penstock.logd.nats.config import NatsSettings
from penstock.logd.nats.connect import Login, TlsFiles
from penstock.logd.nats.protocol import NatsSetupError
from penstock.logd.nats.servers import parse_servers
from tests.support.nats_accounts import Keys, Operator

SERVER = parse_servers("nats://h")[0]
NOW_NS = 1_700_000_000 * 10**9


def mistyped(seed: bytes) -> bytes:
    return seed[:20] + (b"A" if seed[20:21] != b"A" else b"B") + seed[21:]


def test_a_seed_signs_the_nonce_and_stays_here(tmp_path: Path) -> None:
    keys = Keys.make()
    path = tmp_path / "seed"
    path.write_bytes(keys.seed)
    fields = Login(nkey_seed_file=path).fields(SERVER, "nonce", NOW_NS)
    assert fields.keys() == {"nkey", "sig"}
    signature = base64.urlsafe_b64decode(fields["sig"] + "==")
    assert nkeys.from_seed(keys.seed).verify(b"nonce", signature)
    assert fields["nkey"] == keys.public
    assert keys.seed.decode() not in str(fields)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"SUnonsense",
        Keys.make(nkeys.PREFIX_BYTE_ACCOUNT).seed,
        Keys.make().public.encode(),
        mistyped(Keys.make().seed),
        Keys.make().seed + b"\n" + Keys.make().seed,
        b"S" * 100_000,
    ],
    ids=["empty", "binary", "nonsense", "account", "public", "mistyped", "two", "large"],
)
def test_a_file_that_is_no_users_seed_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "seed"
    path.write_bytes(content)
    with pytest.raises(NatsSetupError, match=str(path)) as raised:
        Login(nkey_seed_file=path).fields(SERVER, "nonce", NOW_NS)
    assert raised.value.key == "nats.nkey_seed_file"
    assert raised.value.fix


@pytest.mark.parametrize(("key", "field"), [("password", "pass"), ("token", "auth_token")])
def test_a_secret_of_a_file_is_read_for_each_connection(
    tmp_path: Path, key: str, field: str
) -> None:
    path = tmp_path / "secret"
    path.write_text("old\n")
    given = {key: {"file": str(path)}} | ({"user": "u"} if key == "password" else {})
    login = NatsSettings.model_validate(given).access().login
    assert login.fields(SERVER, "", NOW_NS)[field] == "old"
    path.write_text("new\n")
    assert login.fields(SERVER, "", NOW_NS)[field] == "new"
    path.unlink()
    with pytest.raises(NatsSetupError, match="cannot be read") as raised:
        login.fields(SERVER, "", NOW_NS)
    assert raised.value.key == f"nats.{key}"


def test_a_missing_file_is_named_with_its_key(tmp_path: Path) -> None:
    for key in ("nkey_seed_file", "credentials_file"):
        with pytest.raises(NatsSetupError, match="No such file") as raised:
            Login(**{key: tmp_path / "none"}).fields(SERVER, "", NOW_NS)  # type: ignore[arg-type]
        assert raised.value.key == f"nats.{key}"
    for key in ("ca_file", "cert_file"):
        with pytest.raises(NatsSetupError, match="No such file") as raised:
            TlsFiles(**{key: tmp_path / "none"}).context()  # type: ignore[arg-type]
        assert raised.value.key == f"nats.tls.{key}"


def test_credentials_must_be_whole_in_date_and_one_users(tmp_path: Path) -> None:
    operator = Operator()
    good = operator.credentials(expires_s=NOW_NS // 10**9 + 1)
    path = tmp_path / "user.creds"
    path.write_text(good)
    assert Login(credentials_file=path).fields(SERVER, "n", NOW_NS).keys() == {"jwt", "sig"}
    for content, reason in (
        (good.replace("USER NKEY SEED", "SOMETHING"), "lacks a block"),
        (good.replace("eyJ", "%%%"), "JWT is malformed"),
        (operator.credentials(keys=Keys.make()), "not that of the user"),
        (operator.credentials(expires_s=NOW_NS // 10**9), "expired"),
    ):
        path.write_text(content)
        with pytest.raises(NatsSetupError, match=reason):
            Login(credentials_file=path).fields(SERVER, "n", NOW_NS)


def test_files_that_are_no_certificates_are_named(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    path.write_text("nothing")
    for key in ("ca_file", "cert_file"):
        with pytest.raises(NatsSetupError, match=str(path)) as raised:
            TlsFiles(**{key: path}).context()  # type: ignore[arg-type]
        assert raised.value.key == f"nats.tls.{key}"
