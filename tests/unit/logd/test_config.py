from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.logd.config import LogdConfig
from penstock.service import ConfigError, load_config, show_config

ROOT = Path(__file__).resolve().parents[3]
LOGS = {"name": "logs", "subject": "telemetry.logs.>"}


def load(directory: Path, **changes: Any) -> LogdConfig:
    path = directory / "logd.yaml"
    path.write_text(yaml.safe_dump({"data_dir": "data", "streams": [LOGS]} | changes))
    return load_config(LogdConfig, path, env_prefix="PENSTOCK_LOGD", environ={})


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"colour": "red"}, "colour"),
        ({"streams": [{"name": "a/b", "subject": "a"}]}, "streams.0.name"),
        ({"streams": [{**LOGS, "subject": "_INBOX.>"}]}, "streams.0.subject"),
        ({"streams": [{**LOGS, "subject": "*.logs"}]}, "streams.0.ack_on_reply"),
        ({"streams": [{**LOGS, "fsync": "sometimes"}]}, "streams.0.fsync"),
        ({"streams": [{**LOGS, "max_message_bytes": 1}]}, "streams.0.max_message_bytes"),
        ({"streams": [LOGS, LOGS]}, "named twice"),
        ({"nats": {"url": "http://127.0.0.1"}}, "nats.url"),
        ({"nats": {"url": "nats://127.0.0.1:1,http://b:2"}}, "nats.url"),
        ({"nats": {"url": []}}, "nats.url"),
        ({"nats": {"token": "t", "nkey_seed_file": "f"}}, "token and nkey_seed_file"),
        ({"nats": {"password": "p"}}, "password needs user"),
        ({"nats": {"tls": {"key_file": "f"}}}, "key_file needs cert_file"),
        ({"nats": {"url": "nats://127.0.0.1:x"}}, "nats.url"),
        ({"fetch": "9293"}, "fetch"),
        ({"max_intake_bytes": 5}, "max_intake_bytes"),
    ],
)
def test_a_mistake_is_named_with_its_key(tmp_path: Path, changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, **changes)
    assert key in raised.value.reason
    assert raised.value.fix


@pytest.mark.parametrize(
    ("nats", "credentials"),
    [
        ({"url": "nats://h:1"}, {}),
        ({"url": "nats://tom:p%40ss@h:1"}, {"user": "tom", "pass": "p@ss"}),
        ({"url": "nats://s3cret@h:1"}, {"auth_token": "s3cret"}),
        ({"url": "nats://a:b@h", "user": "u", "password": "p"}, {"user": "u", "pass": "p"}),
        ({"url": "nats://a:b@h", "token": "t"}, {"auth_token": "t"}),
    ],
)
def test_credentials_of_the_file_go_before_those_of_the_url(
    tmp_path: Path, nats: dict[str, str], credentials: dict[str, str]
) -> None:
    access = load(tmp_path, nats=nats).nats.access()
    assert access.login.fields(access.servers[0], "", 0) == credentials
    assert access.shown() in ("h:1", "h:4222")


def test_several_servers_are_a_list_or_separated_by_commas(tmp_path: Path) -> None:
    for url in ("nats://a:1, tls://b", ["nats://a:1", "tls://b"]):
        access = load(tmp_path, nats={"url": url}).nats.access()
        assert [(s.shown(), s.tls) for s in access.servers] == [("a:1", False), ("b:4222", True)]


def test_no_secret_is_shown(tmp_path: Path) -> None:
    for url in ("nats://t0m:0ne@h:1,nats://f0ur@i:1", ["nats://t0m:0ne@h:1", "nats://f0ur@i:1"]):
        secrets = {"url": url, "user": "u", "password": "two"}
        config = load(tmp_path, nats=secrets)
        shown = (
            show_config(config) + repr(config.nats.access().login) + config.nats.access().shown()
        )
        assert not [secret for secret in ("t0m", "0ne", "two", "f0ur") if secret in shown]
        assert "h:1" in shown
        assert "i:1" in shown
    shown = show_config(load(tmp_path, nats={"token": "three"}))
    assert "three" not in shown


def test_the_sample_configuration_is_valid_and_its_page_has_every_key() -> None:
    path = ROOT / "logd" / "logd.yaml"
    config = load_config(LogdConfig, path, env_prefix="PENSTOCK_LOGD", environ={})
    assert [stream.name for stream in config.streams] == [
        "logs",
        "traces",
        "metrics",
        "events",
        "audit",
    ]
    page = (ROOT / "docs" / "logd" / "configuration.md").read_text()
    keys = [*LogdConfig.model_fields, *type(config.streams[0]).model_fields]
    assert [key for key in keys if f"`{key}" not in page and key != "nats"] == []
    assert all(f"`nats.{key}`" in page for key in type(config.nats).model_fields)


TLS = {"cert_file": "a.pem"}
TOKENS = {"issuer": "https://i", "audience": "a"}
CLUSTER = {"name": "c", "initial_members": {"logd-1": "127.0.0.1:1"}}


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"fetch": "0.0.0.0:9293"}, "insecure_listeners: [fetch]"),
        ({"admin": "[::]:9294"}, "insecure_listeners: [admin]"),
        ({"grpc": {"listen": "10.0.0.1:9292"}}, "insecure_listeners: [grpc]"),
        ({"fetch": "logd.example:9293"}, "insecure_listeners: [fetch]"),
        ({"fetch": "0.0.0.0:9293", "insecure_listeners": ["admin"]}, "insecure_listeners: [fetch]"),
        ({"cluster": {**CLUSTER, "peer": "10.0.0.1:9"}, "tls": TLS}, "section `cluster.tls`"),
        ({"insecure_listeners": ["nats"]}, "insecure_listeners"),
        ({"auth": {"required": True}}, "auth.required lets nobody in"),
        ({"auth": {"required": True}, "tls": TLS}, "auth.required lets nobody in"),
        ({"tls": {**TLS, "client_certificates": "required"}}, "needs client_ca_file"),
        ({"tls": {**TLS, "client_ca_file": "b.pem"}}, "optional or required"),
        ({"auth": {"tokens": TOKENS}}, "jwks_file or jwks_url"),
        ({"auth": {"tokens": {**TOKENS, "jwks_file": "f", "jwks_url": "https://h"}}}, "not both"),
        ({"auth": {"tokens": {**TOKENS, "jwks_url": "http://h/k"}}}, "https://"),
        ({"auth": {"tokens": {**TOKENS, "jwks_url": "https://me:pw@h/k"}}}, "without credentials"),
        ({"auth": {"tokens": {**TOKENS, "jwks_file": "f", "clock_skew_s": 301}}}, "clock_skew_s"),
    ],
)
def test_a_door_that_is_open_or_shut_by_mistake_is_refused(
    tmp_path: Path, changes: dict[str, Any], key: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, **changes)
    assert key in raised.value.reason
    assert "pw" not in str(raised.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"fetch": "127.1.2.3:9293", "admin": "[::1]:9294", "grpc": {"listen": "localhost:9292"}},
        {"fetch": "0.0.0.0:9293", "insecure_listeners": ["fetch"]},
        {"fetch": "0.0.0.0:1", "admin": "0.0.0.0:2", "grpc": {"listen": "0.0.0.0:3"}, "tls": TLS},
    ],
)
def test_doors_that_only_this_machine_reaches_or_that_are_encrypted_are_taken(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    assert load(tmp_path, **changes).fetch
