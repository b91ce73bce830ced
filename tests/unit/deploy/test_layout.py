"""A launch's directory, its ports and what is refused before anything is started."""

import json
import os
import socket
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.deploy.up.layout import Layout, claimed, read_running, write_running
from penstock.deploy.up.preflight import require_nats, require_same_nodes, require_writable
from penstock.deploy.up.supervisor import rotate_log
from penstock.deploy.up.topology import (
    DEFAULT_PORTS,
    Topology,
    choose_ports,
    default_ports,
    logd_parts,
    write_configs,
)
from penstock.service import ConfigError, ExitCode, UnavailableError
from penstock.specs.redact.sensitivity import HashKey


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


def test_a_full_disk_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(UnavailableError, match="MiB are free"),
        claimed(Layout(tmp_path), free_bytes_min=2**63),
    ):
        pass


def test_what_a_dead_launcher_wrote_does_not_count(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert read_running(layout) is None
    write_running(layout, {"logd": "http://127.0.0.1:1"})
    assert read_running(layout) == {
            "pid": os.getpid(), "parts": {"logd": "http://127.0.0.1:1"}, "ready": False,
        }  # fmt: skip
    layout.running.write_text(json.dumps({"pid": 2**22 + 1, "parts": {}}))
    assert read_running(layout) is None


def test_what_a_dead_launcher_wrote_is_not_taken_for_the_next_ones(tmp_path: Path) -> None:
    """Its process number may be anybody's by now, and `penstock down` would end them."""
    layout = Layout(tmp_path)
    layout.running.write_text(json.dumps({"pid": os.getppid(), "parts": {}}))
    with claimed(layout):
        assert read_running(layout) is None


def test_a_socket_path_that_is_too_long_moves_to_tmp(tmp_path: Path) -> None:
    short, long = Layout(Path("/srv/penstock")), Layout(tmp_path / ("x" * 100))
    assert short.socket == Path("/srv/penstock/collector.sock")
    assert len(os.fsencode(long.socket)) < 100
    assert long.socket == Layout(long.root).socket
    assert long.socket != Layout(long.root / "other").socket


def test_free_ports_are_all_different() -> None:
    ports = choose_ports(["logd"], any_free=True, without=frozenset({"nats"}))
    assert set(ports) == set(DEFAULT_PORTS) - {"nats"} | {"logd_fetch", "logd_admin"}
    assert len(set(ports.values())) == len(ports)


def test_the_documented_ports_of_nodes_are_all_different() -> None:
    ports = default_ports(logd_parts(5))
    assert len(set(ports.values())) == len(ports) == len(DEFAULT_PORTS) + 15
    assert [ports[f"logd-2_{name}"] for name in ("fetch", "admin", "peer")] == [9303, 9304, 9307]
    assert (default_ports(["logd"])["logd_fetch"], "logd_peer" in default_ports(["logd"])) == (
        9293,
        False,
    )


def test_a_directory_with_the_streams_of_other_nodes_is_refused(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    require_same_nodes(layout, 3)
    for part in logd_parts(3):
        layout.data(part).mkdir()
    require_same_nodes(layout, 3)
    with pytest.raises(ConfigError, match="of 3 logd, not of 1") as caught:
        require_same_nodes(layout, 1)
    assert "--nodes 3" in caught.value.fix


def test_nodes_found_one_cluster_and_everybody_knows_them_all(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    for path in (layout.config, layout.logs):
        path.mkdir()
    topology = Topology(layout, default_ports(logd_parts(3)), nodes=3)
    write_configs(topology)
    nodes = [_written(layout, part) for part in logd_parts(3)]
    assert len({node["data_dir"] for node in nodes}) == 3
    assert {node["node"] for node in nodes} == set(nodes[0]["cluster"]["founders"])
    assert all(
        node["cluster"]["founders"][node["node"]] == node["cluster"]["peer"] for node in nodes
    )
    assert {stream["replication_factor"] for stream in nodes[0]["streams"]} == {3}
    assert _written(layout, "router")["logd"] == "127.0.0.1:9293,127.0.0.1:9303,127.0.0.1:9313"
    logds = ["logd-3", "logd-2", "logd-1"]
    assert topology.drain_order() == ["collector", "router", *logds, "nats", "console"]
    assert _written(layout, "console")["logd"] == _written(layout, "router")["logd"]
    assert set(_written(layout, "console")["parts"]) == {"nats", *logds, "collector", "router"}


def test_a_first_start_makes_a_hash_key_that_stays(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    for path in (layout.config, layout.logs):
        path.mkdir()
    topology = Topology(layout, default_ports(logd_parts(1)), nodes=1)
    write_configs(topology)
    key = layout.hash_key.read_text()
    assert len(HashKey.parse(key.strip()).secret) >= 32
    assert stat.S_IMODE(layout.hash_key.stat().st_mode) == 0o600
    assert _written(layout, "collector")["sensitive"] == {
        "hash_key": {"file": str(layout.hash_key)}
    }
    overlay = {"collector": {"sensitive": {"hash_key": "own:0123456789abcdef"}}}
    write_configs(replace(topology, overlay=overlay))
    assert layout.hash_key.read_text() == key
    assert _written(layout, "collector")["sensitive"] == overlay["collector"]["sensitive"]


def _written(layout: Layout, part: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((layout.config / f"{part}.yaml").read_text())
    return document


def test_a_documented_port_in_use_is_named_with_the_fix() -> None:
    port = default_ports(["logd"])["logd_fetch"]
    others = frozenset(default_ports(["logd"])) - {"logd_fetch"}
    with socket.socket() as taken:
        with suppress(OSError):  # something else has it already
            taken.bind(("127.0.0.1", port))
            taken.listen()
        with pytest.raises(UnavailableError, match=rf"port {port} \(logd fetch\)") as caught:
            choose_ports(["logd"], any_free=False, without=others)
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
        rotate_log(path, 4)
        path.write_text(path.name)
        rotate_log(path, 4)
    assert sorted(path.name for path in layout.logs.iterdir()) == ["router.log.1", "router.out.1"]
