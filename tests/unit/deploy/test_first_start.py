"""What `penstock init` makes: certificates that hold, secrets that stay, valid configurations."""

import json
import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from pydantic import BaseModel
from typing_extensions import override

from penstock.base.clock import Clock
from penstock.base.errors import ConfigError
from penstock.collector.config import CollectorConfig
from penstock.deploy.console.config import ConsoleConfig
from penstock.deploy.init import LEAF_DAYS, RENEW_DAYS, Authority, InitResult, init
from penstock.deploy.site import ADMIN_READERS, FILES, KEYS, NATS_USERS, site_of
from penstock.logd.config import LogdConfig
from penstock.logd.security.acl import Acl, Action, OnCluster, OnStream
from penstock.logd.security.api_keys import load_keys
from penstock.router.job.config import JobConfig
from tests.support import certificates as tests_authority

DAY_NS = 86_400 * 10**9
MAY = {
    "router": {("read", "logs"), ("cursor", "logs")},
    "console": {("read", "logs"), ("alter", "logs"), ("read", "__status")},
    "prometheus": {("read", "__status")},
}
MODELS: dict[str, type[BaseModel]] = {
    "collector": CollectorConfig,
    "router": JobConfig,
    "console": ConsoleConfig,
}


class Calendar(Clock):
    """A clock that is set."""

    def __init__(self) -> None:
        self.now_ns = 1_790_000_000 * 10**9

    @override
    def unix_ns(self) -> int:
        return self.now_ns

    @override
    def monotonic_ns(self) -> int:
        return self.now_ns


@pytest.fixture
def calendar() -> Calendar:
    return Calendar()


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def contents(root: Path) -> dict[str, bytes]:
    """Every file but the notes of what was written."""
    files = {str(one.relative_to(root)): one.read_bytes() for one in root.glob("*/*")}
    return {name: text for name, text in files.items() if name != "operator/written.json"}


@pytest.mark.parametrize("kind", ["compose", "kubernetes"])
def test_every_configuration_is_one_that_its_part_takes(
    tmp_path: Path, calendar: Calendar, kind: str
) -> None:
    init(tmp_path, site_of(kind, 3), calendar)
    configs = sorted(tmp_path.glob("*/*.yaml"))
    assert len(configs) == 7
    for path in configs:
        model = MODELS.get(path.parent.name, LogdConfig)
        model.model_validate(read(path))
    initial_members = [
        read(path)["cluster"]["initial_members"] for path in tmp_path.glob("logd*/*logd.yaml")
    ]
    assert initial_members == [initial_members[0]] * 3


def test_each_part_gets_what_it_needs_and_nothing_that_opens_others(
    tmp_path: Path, calendar: Calendar
) -> None:
    init(tmp_path, site_of("compose", 3), calendar)
    said = contents(tmp_path)
    opens = {name for name in said if not name.startswith("operator/")}
    secrets = json.loads(said["operator/secrets.json"])
    assert (set(secrets["passwords"]), set(secrets["keys"])) == (set(NATS_USERS), set(KEYS))
    for user, password in secrets["passwords"].items():
        places = {name.split("/")[0] for name in opens if password.encode() in said[name]}
        mine = {
            "logd": {"logd-1", "logd-2", "logd-3"},
            "collector": {"collector"},
            "operator": set(),
        }
        assert places == {"nats"} | mine[user]
    for name, key in secrets["keys"].items():
        places = {path.split("/")[0] for path in opens if key.encode() in said[path]}
        assert places == ({name} if name != "operator" else set()), "logd has digests alone"
    for part, token in secrets["admin"].items():
        places = {path.split("/")[0] for path in opens if token.encode() in said[path]}
        assert places == {part, *ADMIN_READERS[part]}
    holders = {path for path in opens if secrets["actions"].encode() in said[path]}
    assert holders == {"router/actions.token", "console/actions.token"}
    holders = {path for path in opens if secrets["page"]["read"].encode() in said[path]}
    assert holders == {"console/read.token"}
    holders = {path for path in opens if secrets["pseudonyms"].encode() in said[path]}
    assert holders == {"collector/pseudonyms.key"}
    assert not any(secrets["page"]["console"].encode() in said[path] for path in opens)
    assert not any(path.endswith("ca.key") for path in opens)
    assert all(one.stat().st_mode & 0o777 == 0o600 for one in tmp_path.glob("*/*"))
    assert set(load_keys(tmp_path / "logd-2" / "keys").by_name) == set(KEYS)


def test_a_second_start_changes_nothing(tmp_path: Path, calendar: Calendar) -> None:
    made = init(tmp_path, site_of("compose", 3), calendar)
    before = contents(tmp_path)
    assert len(made.written) == len(before)
    assert init(tmp_path, site_of("compose", 3), calendar) == InitResult()
    assert contents(tmp_path) == before


def test_no_two_deployments_have_a_secret_in_common(tmp_path: Path, calendar: Calendar) -> None:
    for name in ("one", "two"):
        init(tmp_path / name, site_of("compose", 3), calendar)
    one, two = (
        json.loads((tmp_path / name / "operator" / "secrets.json").read_text())
        for name in ("one", "two")
    )
    assert set(one["passwords"].values()).isdisjoint(two["passwords"].values())
    assert set(one["keys"].values()).isdisjoint(two["keys"].values())
    assert one["pseudonyms"] != two["pseudonyms"]


def test_certificates_name_their_hosts_and_are_of_two_authorities(
    tmp_path: Path, calendar: Calendar
) -> None:
    init(tmp_path, site_of("kubernetes", 3), calendar)
    for name, authority in (("cert", "ca.pem"), ("node", "nodes-ca.pem")):
        pem = (tmp_path / "logd" / f"logd-1-{name}.pem").read_bytes()
        found = x509.load_pem_x509_certificate(pem)
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert {"logd-1.logd", "localhost"} <= set(names.get_values_for_type(x509.DNSName))
        signer = x509.load_pem_x509_certificate((tmp_path / "logd" / authority).read_bytes())
        found.verify_directly_issued_by(signer)
    ssl.create_default_context().load_cert_chain(
        tmp_path / "nats" / "cert.pem", tmp_path / "nats" / "cert.key"
    )


def test_a_certificate_is_made_anew_before_it_ends_and_its_authority_stays(
    tmp_path: Path, calendar: Calendar
) -> None:
    site = site_of("compose", 3)
    init(tmp_path, site, calendar)
    before = contents(tmp_path)
    calendar.now_ns += (LEAF_DAYS - RENEW_DAYS - 1) * DAY_NS
    assert init(tmp_path, site, calendar) == InitResult()
    calendar.now_ns += 2 * DAY_NS
    renewed = {str(path.relative_to(tmp_path)) for path in init(tmp_path, site, calendar).written}
    assert renewed == {name for name in before if re.search(r"/(cert|node)\.(pem|key)$", name)}


def test_a_host_of_another_name_gets_a_certificate_of_that_name(
    tmp_path: Path, calendar: Calendar
) -> None:
    authority = Authority("test", tmp_path / "ca.pem", tmp_path / "ca.key", calendar)
    place = (tmp_path / "a.pem", tmp_path / "a.key")
    put(place, authority.sign("a", ["a", "127.0.0.1"]))
    assert authority.is_good(*place, "a", ["127.0.0.1", "a"])
    assert not authority.is_good(*place, "a", ["a", "b"])
    other = Authority("test", tmp_path / "other.pem", tmp_path / "other.key", calendar)
    assert not other.is_good(*place, "a", ["127.0.0.1", "a"]), "of the name, but another's"
    assert not other.has_signed(*place)


def put(place: tuple[Path, Path], pair: tuple[bytes, bytes]) -> None:
    for path, content in zip(place, pair, strict=True):
        path.write_bytes(content)


@pytest.mark.parametrize("file", ["ca.pem", "nodes-ca.pem"])
def test_an_authority_that_a_kill_left_without_its_certificate_gets_it(
    tmp_path: Path, calendar: Calendar, file: str
) -> None:
    """Its key is written first, so that is what a kill in the middle of the first start leaves."""
    init(tmp_path, site_of("compose", 3), calendar)
    before = contents(tmp_path)
    (tmp_path / "operator" / file).unlink()
    init(tmp_path, site_of("compose", 3), calendar)
    after = contents(tmp_path)
    assert {name for name in before if before[name] != after[name]} == {
        name for name in before if name.endswith(f"/{file}")
    }, "what it has signed stays good"
    again = x509.load_pem_x509_certificate(after[f"operator/{file}"])
    leaf = "cert.pem" if file == "ca.pem" else "node.pem"
    x509.load_pem_x509_certificate(after[f"logd-1/{leaf}"]).verify_directly_issued_by(again)


CHANGES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "an edited configuration": ("collector/collector.yaml", lambda text: text + b"# mine\n"),
    "an edited list of keys": ("logd-1/keys", lambda text: text + b"# mine\n"),
    "another's key": ("router/cert.key", lambda _: b"a key from elsewhere\n"),
    "what is no certificate": ("router/cert.pem", lambda _: b"no certificate\n"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_edited_or_is_somebody_elses_stays_and_is_named(
    tmp_path: Path, calendar: Calendar, change: str
) -> None:
    name, edit = CHANGES[change]
    init(tmp_path, site_of("compose", 3), calendar)
    path = tmp_path / name
    path.write_bytes(edit(path.read_bytes()))
    before = contents(tmp_path)
    made = init(tmp_path, site_of("compose", 3), calendar)
    assert (made.written, made.copies, made.kept) == ([], [], [path])
    assert contents(tmp_path) == before
    forced = init(tmp_path, site_of("compose", 3), calendar, force=True)
    assert path in forced.written
    assert [copy.read_bytes() for copy in forced.copies] == [before[name]]
    assert all(copy.stat().st_mode & 0o777 == 0o600 for copy in forced.copies)
    assert init(tmp_path, site_of("compose", 3), calendar, force=True) == InitResult()


def test_a_certificate_of_another_authority_stays_with_its_key(
    tmp_path: Path, calendar: Calendar
) -> None:
    """One without alternative names, too, as some authorities still make them."""
    init(tmp_path, site_of("compose", 3), calendar)
    made = tests_authority.Authority(tmp_path / "elsewhere").sign("collector")
    for name in ("cert.pem", "cert.key"):
        source = made.cert if name.endswith("pem") else made.key
        (tmp_path / "collector" / name).write_bytes(source.read_bytes())
    before = contents(tmp_path)
    calendar.now_ns += LEAF_DAYS * DAY_NS
    again = init(tmp_path, site_of("compose", 3), calendar)
    assert {path.parent.name for path in again.kept} == {"collector"}
    for name in ("collector/cert.pem", "collector/cert.key"):
        assert contents(tmp_path)[name] == before[name]
    assert tmp_path / "router" / "cert.pem" in again.written, "ours are renewed"


def test_what_an_earlier_version_wrote_is_replaced_by_what_this_one_writes(
    tmp_path: Path, calendar: Calendar
) -> None:
    init(tmp_path, site_of("compose", 3), calendar)
    router = tmp_path / "router" / "router.yaml"
    before = router.read_bytes()
    made = init(tmp_path, site_of("compose", 5), calendar)
    assert router in made.written
    assert made.kept == []
    assert router.read_bytes() != before


@pytest.mark.parametrize("group", ["passwords", "keys", "admin", "page", "actions"])
def test_a_secret_that_is_a_number_is_refused_by_name(
    tmp_path: Path, calendar: Calendar, group: str
) -> None:
    init(tmp_path, site_of("compose", 3), calendar)
    path = tmp_path / "operator" / "secrets.json"
    secrets = json.loads(path.read_text())
    name = group if group == "actions" else f"{group}.{next(iter(secrets[group]))}"
    if group == "actions":
        secrets[group] = 5
    else:
        secrets[group][name.partition(".")[2]] = 5
    path.write_text(json.dumps(secrets))
    with pytest.raises(ConfigError, match=re.escape(f"{path}: {name} is 5, and must be text")):
        init(tmp_path, site_of("compose", 3), calendar)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("secrets.json", b"{"),
        ("secrets.json", b"[]"),
        ("written.json", b"[1]"),
        ("ca.key", b"none"),
        ("ca.key", None),
    ],
)
def test_what_is_damaged_is_refused_and_not_replaced(
    tmp_path: Path, calendar: Calendar, file: str, content: bytes | None
) -> None:
    init(tmp_path, site_of("compose", 3), calendar)
    damaged = tmp_path / "operator" / file
    if content is None:
        damaged.unlink()
    else:
        damaged.write_bytes(content)
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match=file):
        init(tmp_path, site_of("compose", 3), calendar)
    assert contents(tmp_path) == before


def test_a_password_that_a_newer_version_wants_is_added_to_those_that_are_there(
    tmp_path: Path, calendar: Calendar
) -> None:
    init(tmp_path, site_of("compose", 3), calendar)
    path = tmp_path / "operator" / "secrets.json"
    secrets = json.loads(path.read_text())
    gone = secrets["keys"].pop("console")
    del secrets["admin"]  # older versions made none
    path.write_text(json.dumps(secrets))
    init(tmp_path, site_of("compose", 3), calendar)
    now = json.loads(path.read_text())
    assert now["passwords"] == secrets["passwords"]
    assert now["keys"]["console"] != gone
    assert set(now["admin"]) == set(ADMIN_READERS)
    assert {**now["keys"], "console": ""} == {**secrets["keys"], "console": ""}


def test_nats_lets_a_collector_publish_telemetry_and_listen_to_nothing_of_others(
    tmp_path: Path, calendar: Calendar
) -> None:
    init(tmp_path, site_of("compose", 3), calendar)
    lines = (tmp_path / "nats" / "nats.conf").read_text().splitlines()
    collector = next(line for line in lines if "user: collector" in line)
    assert 'subscribe: ["_INBOX.>"]' in collector
    assert '">"' not in collector
    assert any(line.startswith("tls {cert_file") for line in lines)
    assert not any(line.startswith(("http", "monitor_port")) for line in lines)


@pytest.mark.parametrize("kind", ["compose", "kubernetes"])
def test_every_part_asks_who_comes_and_has_the_files_for_it(
    tmp_path: Path, calendar: Calendar, kind: str
) -> None:
    init(tmp_path, site_of(kind, 3), calendar)
    for part in ADMIN_READERS:
        config = read(tmp_path / part / f"{part}.yaml")
        for file in config["admin_access"].values():
            assert (tmp_path / Path(file).relative_to(FILES)).is_file()
        assert config["admin"].startswith("127.0.0.1:") or "cert_file" in config["admin_access"]
    console = read(tmp_path / "console" / "console.yaml")
    assert {url.partition(":")[0] for url in console["parts"].values()} == {"https"}
    for file in console["part_tokens"].values():
        assert (tmp_path / Path(file).relative_to(FILES)).is_file()
    for path in tmp_path.glob("logd*/*logd.yaml"):
        auth = LogdConfig.model_validate(read(path)).auth
        assert (auth.required, auth.acl, auth.superusers) == (True, True, ("operator",))
        acl = Acl((), auth.superusers, auth.granted())
        for name in ("console", "router", "prometheus", "collector", "anybody"):
            may = {
                (str(action), stream)
                for action in Action
                for stream in ("logs", "mine", "__status", "__activity")
                if acl.decide(name, frozenset(), action, OnStream(stream)).allowed
            }
            assert may == MAY.get(name, set())
            assert not acl.decide(name, frozenset(), Action.ADMIN, OnCluster()).allowed
