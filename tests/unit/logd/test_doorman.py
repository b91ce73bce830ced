"""Connections of gRPC are found among a process's descriptors, also when those run out."""

import errno
import os
import socket

import pytest

from penstock.logd.core.strangers import Crowd
from penstock.logd.liftbridge.crowd import Doorman
from penstock.service.clock import SystemClock


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
