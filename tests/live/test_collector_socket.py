"""The source socket with a library that programs send GELF with, and plain sockets, to the log."""

import json
import logging
import socket
from pathlib import Path

import pygelf
import pytest

from tests.support.certificates import Authority
from tests.support.collecting import collecting, endpoint, records
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live


def test_gelf_in_chunks_and_over_tls_and_json_lines(tmp_path: Path, nats_url: str) -> None:
    authority = Authority(tmp_path / "ca")
    own = authority.sign("server", "DNS:localhost,IP:127.0.0.1")
    client = authority.sign("client", "DNS:client")
    files = {
        "cert_file": str(own.cert), "key_file": str(own.key), "ca_file": str(authority.cert)
    }  # fmt: skip
    sources = (
        {"type": "socket", "name": "chunks", "udp": "127.0.0.1:0", "codec": "gelf"},
        {"type": "socket", "name": "gelf", "tcp": "127.0.0.1:0", "codec": "gelf", "tls": files},
        {"type": "socket", "name": "json", "tcp": "127.0.0.1:0", "codec": "json"},
    )
    with collecting(tmp_path, nats_url, *sources) as (logd, collector):
        host, port = endpoint(collector, "chunks").split(":")
        by_datagrams = pygelf.GelfUdpHandler(host, int(port), chunk_size=50, _app="till")
        host, port = endpoint(collector, "gelf").split(":")
        by_tls = pygelf.GelfTlsHandler(
            host=host, port=int(port), validate=True, ca_certs=str(authority.cert),
            certfile=str(client.cert), keyfile=str(client.key), _app="till",
        )  # fmt: skip
        for handler in by_datagrams, by_tls:
            for number in range(20):
                handler.emit(
                    logging.LogRecord("x", logging.WARNING, "", 1, f"{number}" * 80, None, None)
                )
            handler.close()
        host, port = endpoint(collector, "json").split(":")
        with socket.create_connection((host, int(port))) as sender:
            for number in range(20):
                sender.sendall(json.dumps({"msg": str(number), "app": "till"}).encode() + b"\n")
            sender.sendall(b"no json\n")
        wait_until(lambda: len(records(logd, "logs")) == 60)
        found = records(logd, "logs")
        expected = [f"{number}" * times for number in range(20) for times in (80, 80, 1)]
        assert sorted(one["body"] for one in found) == sorted(expected)
        assert {one["resource"]["service.name"] for one in found} == {"till"}
        wait_until(lambda: collector.account("json")["quarantined"] == 1)
