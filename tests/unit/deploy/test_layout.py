"""A launch's directory, its ports and what is refused before anything is started."""

import json
import os
import socket
from pathlib import Path

import pytest

from penstock.deploy import layout as layout_module
from penstock.deploy.layout import Layout, claimed, read_running, write_running
from penstock.deploy.ports import DEFAULT_PORTS, choose_ports
from penstock.deploy.preflight import require_nats, require_writable
from penstock.deploy.supervisor import keep_bounded
from penstock.deploy.topology import Topology
from penstock.service import ConfigError, ExitCode, UnavailableError


def test_a_directory_is_claimed_by_one_launcher_at_a_time(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "new" / "state")
    with claimed(layout):
        write_running(layout, {"logd": "http://127.0.0.1:1"})
        with pytest.raises(UnavailableError, match=f"process {os.getpid()}"), claimed(layout):
            pass
    with claimed(layout):
        assert read_running(layout) is None


def test_a_directory_that_cannot_be_made_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--dir"), claimed(Layout(tmp_path / "file" / "state")):
        pass


def test_a_full_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_module, "FREE_BYTES_MIN", 2**63)
    with pytest.raises(UnavailableError, match="MiB are free"), claimed(Layout(tmp_path)):
        pass


def test_what_a_dead_launcher_wrote_does_not_count(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert read_running(layout) is None
    write_running(layout, {"logd": "http://127.0.0.1:1"})
    assert read_running(layout) == {"pid": os.getpid(), "parts": {"logd": "http://127.0.0.1:1"}}
    layout.running.write_text(json.dumps({"pid": 2**22 + 1, "parts": {}}))
    assert read_running(layout) is None


def test_a_socket_path_that_is_too_long_moves_to_tmp(tmp_path: Path) -> None:
    short, long = Layout(Path("/srv/penstock")), Layout(tmp_path / ("x" * 100))
    assert short.socket == Path("/srv/penstock/collector.sock")
    assert len(os.fsencode(long.socket)) < 100
    assert long.socket == Layout(long.root).socket
    assert long.socket != Layout(long.root / "other").socket


def test_free_ports_are_all_different() -> None:
    ports = choose_ports(any_free=True, without=frozenset({"nats"}))
    assert set(ports) == set(DEFAULT_PORTS) - {"nats"}
    assert len(set(ports.values())) == len(ports)


def test_a_documented_port_in_use_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr("penstock.deploy.ports.DEFAULT_PORTS", {"logd_fetch": port})
        with pytest.raises(UnavailableError, match=rf"port {port} \(logd fetch\)") as caught:
            choose_ports(any_free=False)
    assert "--free-ports" in caught.value.fix


@pytest.mark.parametrize("url", ["127.0.0.1:4222", "http://a:1", "nats://", "nats://a:port"])
def test_a_url_that_is_not_of_nats_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        require_nats(url)
    assert caught.value.exit_code is ExitCode.CONFIG


def test_a_nats_server_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(UnavailableError, match="no NATS server"):
        require_nats("nats://127.0.0.1:1")


def test_a_result_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    require_writable(tmp_path / "result.json")
    with pytest.raises(ConfigError, match="--json"):
        require_writable(tmp_path / "no" / "result.json")


def test_the_url_of_the_nats_server_is_shown_without_credentials(tmp_path: Path) -> None:
    topology = Topology(Layout(tmp_path), {}, nats_url="nats://me:s3cret@10.0.0.5:4222")
    assert topology.nats() == "nats://me:s3cret@10.0.0.5:4222"
    assert topology.nats_shown() == "nats://10.0.0.5:4222"


def test_what_a_part_prints_and_its_log_are_set_aside_beside_each_other(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    for path in (layout.log("router"), layout.output("router")):
        keep_bounded(path, 4)
        path.write_text(path.name)
        keep_bounded(path, 4)
    assert sorted(path.name for path in layout.logs.iterdir()) == ["router.log.1", "router.out.1"]
