"""Connections of gRPC are found among a process's descriptors, also when those run out."""

import os
import socket
from collections.abc import Mapping
from contextlib import ExitStack

import pytest
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.logd.liftbridge.connections import Doorman, sockets_here
from penstock.logd.liftbridge.unauthenticated import Connection, Crowd, Peer
from tests.support.descriptors import no_more_descriptors


@pytest.mark.parametrize("listed", [False, True])
def test_without_descriptors_it_looks_again_and_finds_who_came_meanwhile(*, listed: bool) -> None:
    """They may run out before it has listed the sockets, or when it looks at one of them."""
    with ExitStack() as until, socket.create_server(("127.0.0.1", 0)) as server:

        def sockets() -> list[tuple[int, int]]:
            found = list(sockets_here())
            if listed and not looked:
                looked.append(True)
                until.enter_context(no_more_descriptors())
            return found

        looked = list[bool]()
        crowd = Crowd(known_max=4, strangers_max=8, patience_ns=None)
        doorman = Doorman(crowd, SystemClock(), sockets=sockets)
        doorman.port = server.getsockname()[1]
        with socket.create_connection(server.getsockname()), server.accept()[0]:
            if not listed:
                until.enter_context(no_more_descriptors())
            doorman.look()
            until.close()
            assert doorman.crowd.strangers == 0
            doorman.look()
            assert doorman.crowd.strangers == 1


def taken_over(descriptor: int, other: socket.socket) -> None:
    """What gRPC and whoever opens the next socket do between two steps of a look."""
    os.close(descriptor)
    assert os.dup2(other.fileno(), descriptor) == descriptor


def test_a_socket_that_got_the_number_of_one_that_is_to_go_is_left_alone() -> None:
    near, far = socket.socketpair()

    class Deciding(Crowd):
        @override
        def look(self, there: Mapping[Connection, Peer], now_ns: int) -> list[Connection]:
            going = super().look(there, now_ns)
            assert len(going) == 1
            taken_over(descriptor, near)
            return going

    deciding = Deciding(known_max=4, strangers_max=0, patience_ns=None)
    doorman = Doorman(deciding, SystemClock(), sockets=sockets_here)
    with socket.create_server(("127.0.0.1", 0)) as server, near, far:
        doorman.port = server.getsockname()[1]
        with socket.create_connection(server.getsockname()):
            descriptor = server.accept()[0].detach()
            try:
                doorman.look()
                assert doorman.turned_away == 0
                far.sendall(b"still there")
                assert near.recv(32) == b"still there"
            finally:
                os.close(descriptor)


def test_a_connection_that_got_the_number_of_another_socket_is_not_taken_for_that_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near, far = socket.socketpair()
        with socket.create_connection(server.getsockname()), server.accept()[0] as accepted, far:
            descriptor = near.detach()

            def sockets() -> list[tuple[int, int]]:
                found = list(sockets_here())
                taken_over(descriptor, accepted)
                return found

            crowd = Crowd(known_max=4, strangers_max=8, patience_ns=None)
            doorman = Doorman(crowd, SystemClock(), sockets=sockets)
            doorman.port = server.getsockname()[1]
            try:
                doorman.look()
                assert doorman.crowd.strangers == 1, "it is one connection"
            finally:
                os.close(descriptor)
