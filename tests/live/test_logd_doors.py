"""The doors of a secured logd: what its ports say to strangers, and what changes while it runs."""

import os
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import grpc
import orjson
import psutil
import pytest
from click.testing import CliRunner

from penstock.logd.api.protocol import encode_request
from penstock.logd.cli import cli
from penstock.logd.client import Access, LogClient
from penstock.logd.errors import RefusedError, UnavailableError
from penstock.logd.security.api_keys import line_of, make_key
from tests.support.certificates import Authority
from tests.support.identities import HOST, Callers
from tests.support.liftbridge import LiftbridgeCalls
from tests.support.logd import Logd
from tests.support.logd_cluster import LogdCluster
from tests.support.processes import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

STREAM = {"name": "ledger", "subject": "ledger.>"}


@pytest.fixture
def callers(tmp_path: Path) -> Callers:
    return Callers(tmp_path / "callers")


def known(callers: Callers, token: str | None = None) -> Access:
    """How somebody is let in."""
    return Access(ca_file=callers.servers.cert, token=token or callers.key)


@pytest.fixture
def logd(tmp_path: Path, nats_url: str, callers: Callers) -> Iterator[Logd]:
    options = callers.config()
    with Logd(tmp_path / "logd", nats_url, [STREAM], access=known(callers), **options) as running:
        yield running


# What strangers see.

PROBES = {
    "nothing": b"",
    "http": b"GET /status HTTP/1.0\r\n\r\n",
    "metrics": b"GET /metrics HTTP/1.0\r\n\r\n",
    "streams": encode_request({"api": "streams", "id": 1}),
    "fetch": encode_request({"api": "fetch", "id": 1, "stream": "ledger", "offset": 0}),
    "cluster": encode_request({"api": "cluster", "id": 1}),
    "create": encode_request({"api": "create_stream", "id": 1, "config": STREAM}),
    "token": encode_request({"api": "authenticate", "id": 1, "token": "a.b.c"}),
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    "rubbish": bytes(range(256)),
}


def say(port: int, data: bytes, tls: ssl.SSLContext | None, *, silence_s: float = 0.5) -> bytes:
    """What a port answers, until it closes or says nothing for a while."""
    heard = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as plain:
            connection = tls.wrap_socket(plain, server_hostname="localhost") if tls else plain
            with connection:
                connection.sendall(data)
                connection.settimeout(silence_s)
                while chunk := connection.recv(65_536):
                    heard += chunk
    except OSError:
        pass
    return heard


def gives_away(heard: bytes) -> bool:
    """Whether an answer has anything of logd's but a refusal."""
    facts = (b"ledger", b"penstock_logd_", b"logd-1", b"stages", b"200 OK", b"streams")
    return any(fact in heard for fact in facts)


def test_no_port_says_anything_to_strangers_but_how_it_is(
    tmp_path: Path, nats_url: str, callers: Callers
) -> None:
    nodes = Authority(tmp_path / "nodes")
    own = nodes.sign("logd-1", HOST)
    files = {"ca_file": nodes.cert, "cert_file": own.cert, "key_file": own.key}
    ports = {name: free_port() for name in ("grpc", "peer")}
    peer = f"127.0.0.1:{ports['peer']}"
    cluster = {
        "name": "c",
        "peer": peer,
        "initial_members": {"logd-1": peer},
        "tls": {name: str(path) for name, path in files.items()},
    }
    stranger = callers.servers.sign("stranger")
    contexts = {
        "plain": None,
        "tls": Access(ca_file=callers.servers.cert).context(),
        "peer": Access(ca_file=nodes.cert).context(),
        "strange": Access(
            ca_file=callers.servers.cert, cert_file=stranger.cert, key_file=stranger.key
        ).context(),
    }
    options = callers.config() | {"cluster": cluster}
    options["grpc"] = {"listen": f"127.0.0.1:{ports['grpc']}"}
    with Logd(tmp_path / "logd", nats_url, [], access=known(callers), **options) as logd:
        wait_until(lambda: creates(logd), what="the node has joined itself")
        ports |= {name: int(str(logd.config[name]).split(":")[1]) for name in ("fetch", "admin")}
        subscription_manager = {
            found.laddr.port
            for found in psutil.Process(logd.daemon.pid).net_connections("inet")
            if found.status == psutil.CONN_LISTEN
        }
        assert subscription_manager == set(ports.values())
        asked = list(product(ports.items(), contexts.items(), PROBES.items()))
        with ThreadPoolExecutor(len(PROBES)) as pool:
            heard = pool.map(lambda one: say(one[0][1], one[2][1], one[1][1]), asked)
            given = [one for one, said in zip(asked, heard, strict=True) if gives_away(said)]
        assert [(port[0], how[0], what[0]) for port, how, what in given] == []
        question = b"GET /healthz HTTP/1.0\r\n\r\n"
        health = say(ports["admin"], question, contexts["tls"], silence_s=60)
        body = health.partition(b"\r\n\r\n")[2]
        assert orjson.loads(body) == {"component": "logd", "health": "ready"}
        trusted = ssl_channel(callers, ports["grpc"])
        assert grpc_call(trusted, "proto.API/FetchMetadata") is grpc.StatusCode.UNAUTHENTICATED
        assert grpc_call(trusted, "proto.API/Publish") is grpc.StatusCode.UNAUTHENTICATED
        assert grpc_call(trusted, "grpc.health.v1.Health/Check") is grpc.StatusCode.OK
        assert grpc_call(trusted, "proto.API/FetchMetadata", callers.key) is grpc.StatusCode.OK
        trusted.close()
        metrics = logd.daemon.get("/metrics").read()
        assert b'authentications_failed_total{endpoint="admin",reason="nobody"}' in metrics
        assert b'authentications_failed_total{endpoint="fetch",reason="nobody"}' in metrics
        assert b'tls_handshakes_failed_total{endpoint="fetch"}' in metrics


def creates(logd: Logd) -> bool:
    """Whether the stream is there; a node that has just started has nobody for its replicas."""
    try:
        with logd.client() as log:
            log.create_stream("ledger", "ledger.>")
    except RefusedError:  # NOT_ENOUGH_NODES
        return False
    return True


def ssl_channel(callers: Callers, port: int) -> grpc.Channel:
    credentials = grpc.ssl_channel_credentials(callers.servers.cert.read_bytes())
    return grpc.secure_channel(f"localhost:{port}", credentials)


def grpc_call(channel: grpc.Channel, method: str, token: str = "") -> grpc.StatusCode:
    call: Any = channel.unary_unary(f"/{method}")
    metadata = [("authorization", f"Bearer {token}")] if token else []
    done = call.future(b"", metadata=metadata, timeout=60)
    done.exception()  # waits
    code: grpc.StatusCode = done.code()
    return code


# What changes while it runs.


def streams(logd: Logd, access: Access) -> list[str]:
    with LogClient(logd.fetch, access=access) as log:
        return [stream.name for stream in log.streams()]


def lets_in(logd: Logd, access: Access) -> bool:
    try:
        return streams(logd, access) == ["ledger"]
    except (RefusedError, UnavailableError):
        return False


def reasons(logd: Logd) -> list[str]:
    found: list[str] = logd.daemon.status()["reasons"]
    return found


def test_certificates_change_under_connections(
    logd: Logd, callers: Callers, tmp_path: Path
) -> None:
    renewed = Authority(tmp_path / "renewed")
    before, after = known(callers), Access(ca_file=renewed.cert, token=callers.key)
    with LogClient(logd.fetch, access=before) as lasting:
        assert [stream.name for stream in lasting.streams()] == ["ledger"]
        callers.server.cert.write_bytes(b"rubbish")
        wait_until(lambda: any("tls: " in reason for reason in reasons(logd)))
        assert logd.daemon.status()["health"] == "degraded"
        assert lets_in(logd, before)
        callers.server.replace_with(renewed.sign("logd", HOST))
        wait_until(lambda: lets_in(logd, after))
        assert not lets_in(logd, before)
        assert [stream.name for stream in lasting.streams()] == ["ledger"]
        logd.daemon.tls = after.context()
        wait_until(lambda: reasons(logd) == [])
    assert "credentials_reload_failed" in logd.daemon.log()


def test_an_authority_that_is_taken_out_is_out_and_keys_go_at_once_on_sighup(
    logd: Logd, callers: Callers
) -> None:
    shown = callers.client("billing")
    let_in = Access(ca_file=callers.servers.cert, cert_file=shown.cert, key_file=shown.key)
    assert lets_in(logd, let_in)
    other = Authority(callers.directory / "other")
    callers.clients.cert.write_bytes(other.cert.read_bytes())
    wait_until(lambda: not lets_in(logd, let_in))
    moved = other.sign("billing")
    assert lets_in(
        logd, Access(ca_file=callers.servers.cert, cert_file=moved.cert, key_file=moved.key)
    )
    new = make_key("new")
    assert not lets_in(logd, known(callers, new))
    with LogClient(logd.fetch, access=known(callers)) as lasting:
        lasting.streams()
        callers.keys.write_text(line_of(new))
        os.kill(logd.daemon.pid, signal.SIGHUP)
        wait_until(lambda: lets_in(logd, known(callers, new)))
        with pytest.raises(RefusedError, match="not known here"):
            lasting.streams()
    assert "credentials_reload_requested" in logd.daemon.log()


# Secrets, and commands.


def test_no_secret_is_ever_shown(tmp_path: Path, nats_url: str, callers: Callers) -> None:
    options = callers.config()
    url = nats_url.replace("nats://", "nats://tom:s3cr3t-of-nats@")
    secrets = [callers.key, callers.token("alice"), callers.token("alice", aud="x"), "s3cr3t"]
    secrets += [text.rpartition(".")[2] for text in secrets[:3]]
    secrets.append(callers.server.key.read_text().splitlines()[1])
    said = ""
    with Logd(tmp_path / "logd", url, [STREAM], access=known(callers), **options) as logd:
        for text in (*secrets[:3], callers.key + "x", "s3cr3t.a.b", "s3cr3t"):
            path = callers.token_file(text)
            arguments = ["--server", logd.fetch, "--tls-ca", str(callers.servers.cert)]
            done = CliRunner().invoke(cli, ["streams", "ls", *arguments, "--token-file", str(path)])
            said += done.output + done.stderr
        said += logd.daemon.get("/status").read().decode()
        said += logd.daemon.get("/metrics").read().decode()
        path = tmp_path / "logd" / "logd.yaml"
        check = [sys.executable, "-m", "penstock.logd", "--config", str(path), "--check"]
        done_check = subprocess.run(check, capture_output=True, text=True, check=True)
        said += done_check.stdout + done_check.stderr
    activity = tmp_path / "logd" / "data"
    written = b"".join(found.read_bytes() for found in activity.rglob("*") if found.is_file())
    said += written.decode("latin-1")
    said += logd.daemon.log()
    assert "authentication_failed" in said
    assert "keys_file" in said
    assert [secret for secret in secrets if secret in said] == []


def test_commands_show_who_asks_and_make_keys(logd: Logd, callers: Callers) -> None:
    server = ["--server", logd.fetch]
    trust = ["--tls-ca", str(callers.servers.cert)]
    shown = callers.client("billing")
    token = callers.token_file(callers.token("alice"))
    for more in (
        ["--token-file", str(token)],
        ["--cert", str(shown.cert), "--key", str(shown.key)],
    ):
        done = CliRunner().invoke(cli, ["streams", "ls", *server, *trust, *more])
        assert done.exit_code == 0, done.stderr
        assert "ledger" in done.output
    environment = {
        "PENSTOCK_LOGD_SERVER": logd.fetch,
        "PENSTOCK_LOGD_TLS_CA": str(callers.servers.cert),
        "PENSTOCK_LOGD_TOKEN_FILE": str(token),
    }
    done = CliRunner().invoke(cli, ["streams", "ls"], env=environment)
    assert done.exit_code == 0, done.stderr
    unknown = CliRunner().invoke(cli, ["streams", "ls", *server, *trust])
    assert unknown.exit_code == 1
    assert "UNAUTHENTICATED" in unknown.stderr
    assert "--token-file" in unknown.stderr
    plain = CliRunner().invoke(cli, ["streams", "ls", *server])
    assert plain.exit_code == 69
    apart = CliRunner().invoke(cli, ["streams", "ls", *server, "--key", str(shown.key)])
    assert apart.exit_code in (2, 64)
    made = CliRunner().invoke(cli, ["keys", "new", "batch-2", "--days", "1", "--group", "ops"])
    assert made.exit_code == 0
    key = made.stderr.splitlines()[1]
    assert key not in made.stdout
    with callers.keys.open("a") as file:
        file.write(made.stdout)
    wait_until(lambda: lets_in(logd, known(callers, key)))
    for wrong in (["keys", "new", "a b"], ["keys", "new", "a", "--group", "x,y"]):
        assert CliRunner().invoke(cli, wrong).exit_code in (2, 64)


def test_a_file_that_was_never_sound_ends_the_start(tmp_path: Path, nats_url: str) -> None:
    logd = Logd(tmp_path / "logd", nats_url, [], tls={"cert_file": "missing.pem"})
    logd.daemon.launch()
    assert logd.daemon.wait(within_s=30) == 78
    assert "tls.cert_file: " in logd.daemon.log()
    assert "fix: name an existing, readable file" in logd.daemon.log()


def test_probes_need_no_certificate_and_everything_else_does(
    tmp_path: Path, nats_url: str, callers: Callers
) -> None:
    options = callers.config(certificates="required", required=False)
    shown = callers.client("prometheus")
    let_in = Access(ca_file=callers.servers.cert, cert_file=shown.cert, key_file=shown.key)
    port = free_port()
    options["grpc"] = {"listen": f"127.0.0.1:{port}"}
    with Logd(tmp_path / "logd", nats_url, [STREAM], access=let_in, **options) as logd:
        assert streams(logd, let_in) == ["ledger"]
        assert logd.daemon.status()["name"] == "logd-1"
        logd.daemon.tls = Access(ca_file=callers.servers.cert).context()
        assert orjson.loads(logd.daemon.get("/healthz").read())["health"] == "ready"
        with pytest.raises(urllib.error.HTTPError) as refused:
            logd.daemon.get("/metrics")
        assert refused.value.code == 401
        refused.value.close()
        with pytest.raises(UnavailableError):
            streams(logd, known(callers))
        with LiftbridgeCalls(f"127.0.0.1:{port}") as plain, pytest.raises(grpc.RpcError):
            plain.call("FetchMetadata", {}, timeout_s=2)


def test_a_cluster_is_as_closed_as_each_node_and_serves_across_the_loss_of_one(
    tmp_path: Path, nats_url: str, callers: Callers
) -> None:
    nodes = Authority(tmp_path / "nodes")
    own = nodes.sign("node", f"{HOST},DNS:a,DNS:b,DNS:c")
    tls = {"ca_file": nodes.cert, "cert_file": own.cert, "key_file": own.key}
    section = {"tls": {key: str(path) for key, path in tls.items()} | {"named_nodes": True}}
    let_in = known(callers)
    with LogdCluster(
        tmp_path, nats_url, section=section, access=let_in, **callers.config()
    ) as cluster:
        with cluster.nodes["a"].client() as log:
            assert log.create_stream("ledger", "ledger.>").name == "ledger"
            leader = str(log.stream("ledger").partitions[0].leader)
            cluster.nodes[leader].daemon.kill()
            assert log.offsets("ledger").end == 0
        other = next(name for name in cluster.names if name != leader)
        with pytest.raises(RefusedError, match="say who you are"):
            streams(cluster.nodes[other], Access(ca_file=callers.servers.cert))
