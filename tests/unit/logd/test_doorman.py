"""Connections of gRPC are found among a process's descriptors, also when those run out."""

import errno
import os
import socket
from collections.abc import Mapping

import pytest

from penstock.base.clock import SystemClock
from penstock.logd.core.strangers import Connection, Crowd, Peer
from penstock.logd.liftbridge import crowd
from penstock.logd.liftbridge.crowd import Doorman


@pytest.mark.parametrize("function", ["listdir", "dup"])
def test_without_descriptors_it_looks_again_and_finds_who_came_meanwhile(
    function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> object:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    doorman = Doorman(Crowd(known_max=4, strangers_max=8, patience_ns=None), SystemClock())
    with socket.create_server(("127.0.0.1", 0)) as server:
        doorman.port = server.getsockname()[1]
        with socket.create_connection(server.getsockname()), server.accept()[0]:
            with monkeypatch.context() as patched:
                patched.setattr(os, function, fail)
                doorman.look()
            assert doorman.crowd.strangers == 0
            doorman.look()
            assert doorman.crowd.strangers == 1


def taken_over(descriptor: int, other: socket.socket) -> None:
    """What gRPC and whoever opens the next socket do between two steps of a look."""
    os.close(descriptor)
    assert os.dup2(other.fileno(), descriptor) == descriptor


def test_a_socket_that_got_the_number_of_one_that_is_to_go_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deciding = Crowd(known_max=4, strangers_max=0, patience_ns=None)
    doorman = Doorman(deciding, SystemClock())
    near, far = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as server, near, far:
        doorman.port = server.getsockname()[1]
        with socket.create_connection(server.getsockname()):
            descriptor = server.accept()[0].detach()
            decide = deciding.look

            def look(there: Mapping[Connection, Peer], now_ns: int) -> list[Connection]:
                going = decide(there, now_ns)
                assert len(going) == 1
                taken_over(descriptor, near)
                return going

            try:
                with monkeypatch.context() as patched:
                    patched.setattr(deciding, "look", look)
                    doorman.look()
                assert doorman.turned_away == 0
                far.sendall(b"still there")
                assert near.recv(32) == b"still there"
            finally:
                os.close(descriptor)


def test_a_connection_that_got_the_number_of_another_socket_is_not_taken_for_that_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    doorman = Doorman(Crowd(known_max=4, strangers_max=8, patience_ns=None), SystemClock())
    with socket.create_server(("127.0.0.1", 0)) as server:
        doorman.port = server.getsockname()[1]
        near, far = socket.socketpair()
        with socket.create_connection(server.getsockname()), server.accept()[0] as accepted, far:
            descriptor = near.detach()
            listed = crowd._sockets

            def sockets() -> list[tuple[int, int]]:
                found = list(listed())
                taken_over(descriptor, accepted)
                return found

            try:
                with monkeypatch.context() as patched:
                    patched.setattr(crowd, "_sockets", sockets)
                    doorman.look()
                assert doorman.crowd.strangers == 1, "it is one connection"
            finally:
                os.close(descriptor)
