"""TLS on the way to destinations: whose certificate is trusted, whose is shown, and who we are."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.router.errors import StoppedError
from penstock.router.sinks import make_sink
from penstock.router.sinks.registry import sink_kind
from tests.support.certificates import Authority, Certificate
from tests.support.fake_datadog import API_KEY, FakeDatadog
from tests.support.fake_otlp import FakeOtlp, serve_grpc
from tests.support.fault_door import FaultDoor
from tests.support.nats_server import nats_server
from tests.support.sink_batches import batch, context, dead_letters, log_record, span_record
from tests.support.sink_cases import FAST, Webhook
from tests.support.tls_door import TlsDoor
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

COUNT = 3
ROWS = batch([log_record(number) for number in range(COUNT)])


class Trust:
    """An authority that both sides trust, one that nobody does, and a certificate of each."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory / "own")
        self.stranger = Authority(directory / "strange")
        self.server = self.authority.sign("server", "DNS:localhost,IP:127.0.0.1")
        self.client = self.authority.sign("client")
        self.strange_client = self.stranger.sign("client")

    def keys(self, mode: str) -> dict[str, str]:
        """The sink's `tls` in a mode."""
        authority = self.stranger if mode == "wrong authority" else self.authority
        found = {"ca_file": str(authority.cert)}
        shown = {"client": self.client, "wrong client": self.strange_client}.get(mode)
        return found | (_shown(shown) if shown is not None else {})

    def demanded(self, mode: str) -> Path | None:
        """Who must have signed a client's certificate."""
        return self.authority.cert if "client" in mode else None


def _shown(certificate: Certificate) -> dict[str, str]:
    return {"cert_file": str(certificate.cert), "key_file": str(certificate.key)}


@pytest.fixture
def trust(tmp_path: Path) -> Trust:
    return Trust(tmp_path / "trust")


def opened(directory: Path, **keys: Any) -> tuple[Any, Any]:
    made = context(directory)
    sink = make_sink(sink_kind(keys["type"]).config.model_validate(FAST | keys), made)
    sink.open()
    return sink, made


@contextmanager
def over_http(trust: Trust, mode: str) -> Iterator[tuple[dict[str, Any], Any]]:
    """Settings of a sink, and what tells the records that are there."""
    with ExitStack() as stack:
        door = FaultDoor(Webhook())
        stack.callback(door.close)
        port = int(door.url.rpartition(":")[2])
        tls = stack.enter_context(TlsDoor(port, trust.server, trust.demanded(mode)))
        backend: Any = door.backend
        settings = {"type": "http", "url": f"https://127.0.0.1:{tls.port}/in"}
        yield settings, lambda: [record["body"] for record in backend.records]


@contextmanager
def over_grpc(trust: Trust, mode: str) -> Iterator[tuple[dict[str, Any], Any]]:
    """As over HTTP."""
    fake = FakeOtlp()
    demanded = trust.demanded(mode)
    credentials = grpc.ssl_server_credentials(
        [(trust.server.key.read_bytes(), trust.server.cert.read_bytes())],
        demanded.read_bytes() if demanded is not None else None,
        require_client_auth=demanded is not None,
    )
    server, port = serve_grpc(fake, credentials)
    try:
        settings = {"type": "otlp", "protocol": "grpc", "url": f"https://127.0.0.1:{port}"}
        yield settings, lambda: [it["body"]["stringValue"] for it in fake.members["logs"]]
    finally:
        server.stop(None).wait()


WAYS = {"http": over_http, "grpc": over_grpc}


@pytest.mark.parametrize("mode", ["authority", "client"])
@pytest.mark.parametrize("way", list(WAYS))
def test_records_go_to_whom_our_authority_knows(
    way: str, mode: str, trust: Trust, tmp_path: Path
) -> None:
    with WAYS[way](trust, mode) as (settings, stored):
        sink, made = opened(tmp_path, **settings, tls=trust.keys(mode))
        sink.write(ROWS)
        sink.close()
        assert Counter(int(body.split()[1]) for body in stored()) == Counter(range(COUNT))
        assert dead_letters(made) == []


@pytest.mark.parametrize(
    ("mode", "http_says", "grpc_says"),
    [
        ("wrong authority", "certificate verify failed", "CERTIFICATE_VERIFY_FAILED"),
        ("no client", "https://127.0.0.1", "UNAVAILABLE"),
        ("wrong client", "https://127.0.0.1", "UNAVAILABLE"),
    ],
)
@pytest.mark.parametrize("way", list(WAYS))
def test_whom_tls_does_not_know_gets_no_record_and_none_is_lost(
    way: str, mode: str, http_says: str, grpc_says: str, trust: Trust, tmp_path: Path
) -> None:
    """Each record alone as well: as many attempts as would convict it."""
    with WAYS[way](trust, mode) as (settings, stored):
        keys = {"tls": trust.keys(mode), "batch": {"max_records": 1}}
        sink, made = opened(tmp_path, **settings, **keys)
        _is_waited_for(sink, made, {"http": http_says, "grpc": grpc_says}[way])
        sink.close()
        assert stored() == []


def _is_waited_for(sink: Any, made: Any, says: str, *, failures: int = 5) -> None:
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(sink.write, ROWS)
        try:
            wait_until(lambda: made.meter.stage("x", received=COUNT, lag=0).errors > failures)
            wait_until(lambda: says in (made.meter.problem or ""), what=says)
        finally:
            made.stop.set()
        with pytest.raises(StoppedError):
            writing.result(30)
    assert dead_letters(made) == []


def test_each_address_of_datadog_has_tls_by_its_own_scheme(trust: Trust, tmp_path: Path) -> None:
    """Logs go to a proxy of this network, spans to an Agent behind TLS."""
    with ExitStack() as stack:
        datadog = FakeDatadog()
        door = FaultDoor(datadog)
        stack.callback(door.close)
        tls = stack.enter_context(TlsDoor(int(door.url.rpartition(":")[2]), trust.server))
        settings = {"api_key": API_KEY, "url": door.url, "tls": trust.keys("authority")}
        agent = f"https://127.0.0.1:{tls.port}"
        sink, made = opened(tmp_path, type="datadog", **settings, agent_url=agent)
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(sink.write, batch([log_record(0), span_record(1)]))
            try:
                wait_until(lambda: writing.done() or made.meter.problem is not None)
            finally:
                made.stop.set()
            writing.result(30)
        sink.close()
        assert (len(datadog.logs), len(datadog.spans)) == (1, 1)
        assert dead_letters(made) == []


@pytest.mark.parametrize("login", ["token", "password", "certificate"])
def test_nats_with_tls_knows_us(login: str, trust: Trust, tmp_path: Path) -> None:
    with _nats(trust, login, tmp_path) as settings:
        sink, made = opened(tmp_path, **settings, tls=trust.keys("client"))
        sink.write(ROWS)
        sink.close()
        assert made.meter.stage("x", received=COUNT, lag=0).sent == COUNT
        assert dead_letters(made) == []


@pytest.mark.parametrize(
    ("tls", "keys", "says"),
    [
        ("wrong authority", {}, "certificate verify failed"),
        ("authority", {"token": "wrong"}, "uthoriz"),
    ],
)
def test_nats_that_we_do_not_trust_or_that_does_not_know_us_is_waited_for(
    tls: str, keys: dict[str, str], says: str, trust: Trust, tmp_path: Path
) -> None:
    with _nats(trust, "token", tmp_path) as settings:
        sink, made = opened(tmp_path, **settings | keys, tls=trust.keys(tls))
        _is_waited_for(sink, made, says, failures=0)
        sink.close()


@contextmanager
def _nats(trust: Trust, login: str, directory: Path) -> Iterator[dict[str, Any]]:
    """Settings of a sink for a server with TLS alone, which stores nothing."""
    home = directory / "nats"
    home.mkdir()
    demands = f', ca_file: "{trust.authority.cert}", verify: true' if login == "certificate" else ""
    allowed = {"token": "token: right", "password": "user: us, password: right"}.get(login)
    config = home / "nats.conf"
    config.write_text(
        f'tls {{ cert_file: "{trust.server.cert}", key_file: "{trust.server.key}"{demands} }}\n'
        + (f"authorization {{ {allowed} }}\n" if allowed else "")
    )
    own = {"token": {"token": "right"}, "password": {"user": "us", "password": "right"}}
    with nats_server(home, config=config) as server:
        yield {
            "type": "nats", "servers": f"tls://127.0.0.1:{server.port}", "subject": "out",
            "acknowledge": False, **own.get(login, {}),
        }  # fmt: skip
