"""Ports between Spark's processes: who is let in, and which are not there."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.router.spark.session import OnlyFrom, unix_sockets

CONNECT = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
    connection.sendall(b"hello")
    print(flush=True)
    sys.stdin.read()
"""


@contextmanager
def caller(port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has connected, and said something."""
    with subprocess.Popen(
        [sys.executable, "-c", CONNECT, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def test_only_the_process_that_was_started_is_heard() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with caller(port) as known, caller(port) as stranger:
            heard = {}
            for process in (known, stranger):
                accepted, _ = server.accept()
                door = OnlyFrom(known.pid)
                with door.wrap_socket(accepted, server_side=True) as connection:
                    connection.settimeout(20)
                    heard[process.pid] = connection.recv(100)
            assert sorted(heard.values()) == [b"", b"hello"], "though both have said something"
        ended = OnlyFrom(known.pid)
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = server.accept()
            with ended.wrap_socket(accepted, server_side=True) as connection:
                assert connection.recv(100) == b"", "the process is no more"


def test_the_same_ports_at_another_address_are_a_strangers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with caller(port) as known, socket.socket() as stranger:
            first, (_, known_port) = server.accept()
            stranger.bind(("127.0.0.2", known_port))
            stranger.connect(("127.0.0.1", port))
            second, _ = server.accept()
            door = OnlyFrom(known.pid)
            with first, second, door.wrap_socket(second, server_side=True) as refused:
                assert door.wrap_socket(first, server_side=True) is first
                assert refused is not second, "its ports are those of the one that is known"
                assert refused.recv(100) == b""


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose name leaves room for a socket's."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def test_sockets_of_python_processes_are_where_nobody_else_comes(
    short: Path, tmp_path: Path
) -> None:
    (short / "python").mkdir(mode=0o700)
    (short / "python" / ".left.sock").touch()
    found = unix_sockets(short)
    place = Path(found["spark.python.unix.domain.socket.dir"])
    assert place.stat().st_mode & 0o077 == 0
    assert list(place.iterdir()) == []
    far = tmp_path / ("d" * 80)
    far.mkdir()
    near = Path(unix_sockets(far)["spark.python.unix.domain.socket.dir"])
    try:
        assert near.parent == Path(tempfile.gettempdir())
        assert len(os.fsencode(near)) < 60
        assert unix_sockets(far) == unix_sockets(far), "the next start finds it"
    finally:
        near.rmdir()


def test_a_directory_that_others_may_enter_is_not_used(short: Path) -> None:
    (short / "python").mkdir(mode=0o755)
    assert unix_sockets(short) == {}
