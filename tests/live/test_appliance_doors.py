"""Every port of every process of a secured appliance, asked by a client that nobody knows."""

import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.logd.api.protocol import encode_request
from penstock.logd.client import Access
from tests.support.collector import Collector
from tests.support.identities import HOST, Callers
from tests.support.logd import Logd
from tests.support.nats_server import NatsServer
from tests.support.processes import Daemon, free_port
from tests.support.router import RouterJob
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

STREAM = {"name": "ledger", "subject": "ledger.>"}
PASSWORD = "a password of this test"
TOKEN = "a token of this test"
REPORT = b'{"resourceLogs":[]}'
PROBES = {
    "nothing": b"",
    "status": b"GET /status HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n",
    "metrics": b"GET /metrics HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n",
    "page": b"GET / HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n",
    "console": b"GET /api/snapshot HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n",
    "varz": b"GET /varz HTTP/1.0\r\n\r\n",
    "otlp": b"POST /v1/logs HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(REPORT), REPORT),
    "streams": encode_request({"api": "streams", "id": 1}),
    "forward": b"\x93\xa3tag\x00\x81\xa1k\xa1v",
    "nats": b'CONNECT {"verbose":true}\r\nSUB > 1\r\nPUB ledger.x 1\r\nx\r\nPING\r\n',
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    "rubbish": bytes(range(256)),
    "connz": b"GET /connz?subs=1 HTTP/1.0\r\n\r\n",
    "jobs": b"GET /api/v1/applications HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n",
    "plans": b"GET /SQL/ HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n",
    # Py4J: the JVM's memory, and a call of what Python lent it, whose first is p0.
    "jvm": b"m\nd\no0\ne\n",
    "lent": b"c\np0\ncall\nr1\nL1\ne\n",
    # Spark's RPC and blocks: a frame that asks for a stream, by its name.
    "spark": b"\0\0\0\0\0\0\0\x1e\6\0\0\0\x11/jars/any.jar.key",
    "rpc": b"\0\0\0\0\0\0\0\x16\3\0\0\0\0\0\0\0\1\0\0\0\1x",
    # A Python worker, which begins with the secret it is asked for.
    "worker": b"\0\0\0\4none",
}
FACTS = (b"ledger", b"penstock_", b"stages", b"reconciliation", b'"streams"', b"PONG", b"+OK",
         b"MSG ", b'server_id":"N",', b"partialSuccess", b"200 OK", b"Spark Jobs",
         b"sparkVersion", b"Object ID", b"!yro", b"!ys")  # fmt: skip


class Appliance:
    """nats-server, logd, collector, router, console as `docs/howto/secure-it.md` would have them.

    Attributes:
        daemons: By name.
        pids: Of all processes, by name.
        heartbeats: The UDP port on which the protocol forward has senders ask whether it is there.
    """

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.callers = callers = Callers(directory / "callers")
        self.token = callers.token_file(TOKEN, "admin-token")
        nats = stack.enter_context(_nats(directory / "nats", callers))
        secured = {
            "url": f"tls://localhost:{nats.port}",
            "user": "penstock",
            "password": PASSWORD,
        }
        ca = str(callers.servers.cert)
        logd = Logd(
            directory / "logd", "", [STREAM],
            access=Access(ca_file=callers.servers.cert, token=callers.key),
            **callers.config(),
            grpc={"listen": f"127.0.0.1:{free_port()}"},
        )  # fmt: skip
        logd.config["nats"] = secured | {"tls": {"ca_file": ca}}
        stack.enter_context(logd)
        collector = Collector(directory / "collector", "", self._sources(directory))
        collector.config["nats"] = secured | {"ca_file": ca}
        collector.config["admin_access"] = self._admin()
        self._enter(stack, collector.daemon)
        router = self._router(directory / "router", logd)
        self._enter(stack, router.daemon)
        console = Daemon("deploy.console", self._console(logd, collector), directory)
        self._enter(stack, console)
        self.daemons = {
            "logd": logd.daemon,
            "collector": collector.daemon,
            "router": router.daemon,
            "console": console,
        }
        self.pids = {name: daemon.pid for name, daemon in self.daemons.items()}
        self.pids["nats"] = nats.pid

    def _enter(self, stack: ExitStack, daemon: Daemon) -> None:
        daemon.tls, daemon.token = self.tls(), TOKEN
        stack.callback(daemon.close)
        daemon.start(within_s=240)

    def tls(self) -> ssl.SSLContext:
        """The context of a client that trusts the authority and shows no certificate."""
        return ssl.create_default_context(cafile=str(self.callers.servers.cert))

    def _admin(self) -> dict[str, str]:
        own = self.callers.server
        return {
            "token_file": str(self.token), "cert_file": str(own.cert), "key_file": str(own.key),
        }  # fmt: skip

    def _sources(self, directory: Path) -> list[dict[str, Any]]:
        own = self.callers.server
        tls = {
            "cert_file": str(own.cert),
            "key_file": str(own.key),
            "ca_file": str(self.callers.clients.cert),
        }
        otlp = {"grpc": f"127.0.0.1:{free_port()}", "http": f"127.0.0.1:{free_port()}"}
        self.heartbeats = free_port()
        listen = f"127.0.0.1:{self.heartbeats}"
        return [
            {"type": "unix", "path": str(directory / "collector.sock")},
            {"type": "otlp", "tls": tls, **otlp},
            {"type": "forward", "tls": tls, "listen": listen, "shared_key": PASSWORD},
            {"type": "syslog", "tls": tls, "udp": None, "tcp": f"127.0.0.1:{free_port()}"},
        ]

    def _router(self, directory: Path, logd: Logd) -> RouterJob:
        key = self.callers.token_file(self.callers.key, "router-key")
        return RouterJob(
            directory,
            logd.fetch,
            streams=[STREAM["name"]],
            source={"tls_ca_file": str(self.callers.servers.cert), "token_file": str(key)},
            admin_access=self._admin(),
            spark={"master": "local[1]"},
        )

    def _console(self, logd: Logd, collector: Collector) -> dict[str, Any]:
        own = self.callers.server
        page = self.callers.token_file("a token for looking", "page-token")
        return {
            "listen": f"127.0.0.1:{free_port()}",
            "admin": f"127.0.0.1:{free_port()}",
            "admin_access": self._admin(),
            "token_file": str(page),
            "read_without_token": False,
            "tls": {"cert_file": str(own.cert), "key_file": str(own.key)},
            "parts": {"collector": f"https://{collector.daemon.admin}"},
            "logd": logd.fetch,
            "access": {"ca_file": str(self.callers.servers.cert), "token_file": str(self.token)},
        }

    def ports(self) -> dict[int, str]:
        """Every port of every process, and of their children: whose it is."""
        found: dict[int, str] = {}
        for name, pid in self.pids.items():
            process = psutil.Process(pid)
            for one in (process, *process.children(recursive=True)):
                for connection in one.net_connections("inet"):
                    if connection.status == psutil.CONN_LISTEN:
                        assert connection.laddr.ip in ("127.0.0.1", "::1", "::ffff:127.0.0.1")
                        found[connection.laddr.port] = name
                    elif connection.type == socket.SOCK_DGRAM:
                        assert (name, connection.laddr.port) == ("collector", self.heartbeats)
        return found


@contextmanager
def _nats(directory: Path, callers: Callers) -> Iterator[NatsServer]:
    directory.mkdir()
    own = callers.servers.sign("nats", HOST)
    config = directory / "nats.conf"
    config.write_text(
        f'tls {{cert_file: "{own.cert}", key_file: "{own.key}"}}\n'
        f'authorization {{users = [{{user: penstock, password: "{PASSWORD}"}}]}}\n'
    )
    server = NatsServer(directory, config=config)
    try:
        yield server
    finally:
        server.close()


def say(port: int, data: bytes, tls: ssl.SSLContext | None, *, silence_s: float = 0.7) -> bytes:
    """What a port answers, until it closes or says nothing for a while."""
    heard = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
            connection = tls.wrap_socket(plain, server_hostname="localhost") if tls else plain
            with connection:
                connection.sendall(data)
                connection.settimeout(silence_s)
                while chunk := connection.recv(65_536):
                    heard += chunk
    except OSError:
        pass
    return heard


def facts_beyond(part: str, asked: str) -> list[bytes]:
    """What that answer may not hold. The console's page is for everybody: it is a file."""
    return [fact for fact in FACTS if (part, asked, fact) != ("console", "page", b"200 OK")]


def say_by_datagram(port: int, data: bytes) -> bytes:
    """What a UDP port answers."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(0.7)
        asking.sendto(data, ("127.0.0.1", port))
        try:
            return asking.recv(65_536)
        except TimeoutError:
            return b""


def code_of(url: str, tls: ssl.SSLContext, token: str = "") -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=20, context=tls) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_nothing_of_a_secured_appliance_answers_strangers_but_its_health(tmp_path: Path) -> None:
    with ExitStack() as stack:
        appliance = Appliance(tmp_path, stack)
        ports = appliance.ports()
        assert sorted(set(ports.values())) == ["collector", "console", "logd", "nats", "router"]
        contexts = {"plain": None, "tls": appliance.tls()}
        asked = list(product(ports.items(), contexts.items(), PROBES.items()))
        with ThreadPoolExecutor(16) as pool:
            heard = list(pool.map(lambda one: say(one[0][0], one[2][1], one[1][1]), asked))
            told = [
                (port[1], port[0], how[0], what[0], said[:200])
                for (port, how, what), said in zip(asked, heard, strict=True)
                if any(fact in said for fact in facts_beyond(port[1], what[0]))
            ]
        assert told == []
        routers = [port for port, whose in ports.items() if whose == "router"]

        def sparks() -> list[bytes]:
            with ThreadPoolExecutor(len(routers)) as pool:
                heard = pool.map(lambda port: say(port, PROBES["rpc"], None, silence_s=3), routers)
                return [said for said in heard if said[8:9] == b"\5"]

        found = wait_until(sparks, within_s=60, what="Spark answers on one of the ports")
        assert all(b"SaslMessage" in said for said in found), "and asks for its secret"
        beats = {say_by_datagram(appliance.heartbeats, probe) for probe in PROBES.values()}
        assert beats <= {b"", b"\0"}  # that it is there, as the protocol has it
        for name, daemon in appliance.daemons.items():
            assert daemon.running, f"{name} has ended: {daemon.log()[-3000:]}"
            with urllib.request.urlopen(
                f"https://{daemon.admin}/healthz", timeout=20, context=appliance.tls()
            ) as answer:
                document = json.load(answer)
            assert set(document) == {"component", "health"}, name
            assert code_of(f"https://{daemon.admin}/status", appliance.tls()) == 401, name
            assert code_of(f"https://{daemon.admin}/status", appliance.tls(), daemon.token) == 200
        assert appliance.ports() == ports  # nothing has opened another one since
