"""What a service manager is told, and that it is asked for."""

import socket
from pathlib import Path

import pytest

from penstock.service.notify import notify, notify_reloading


def test_nobody_is_told_who_did_not_ask() -> None:
    assert not notify(environ={}, READY=1)


@pytest.mark.parametrize("abstract", [False, True])
def test_the_manager_is_told_on_its_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, abstract: bool
) -> None:
    name = f"@{tmp_path}/n" if abstract else str(tmp_path / "n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name[1:]}" if abstract else name)
        manager.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        assert notify(READY=1, STATUS="collecting")
        assert manager.recv(4096) == b"READY=1\nSTATUS=collecting"
        assert notify_reloading()
        assert manager.recv(4096).startswith(b"RELOADING=1\nMONOTONIC_USEC=")


def test_a_manager_that_is_gone_ends_nothing(tmp_path: Path) -> None:
    assert not notify(environ={"NOTIFY_SOCKET": str(tmp_path / "gone")}, READY=1)
