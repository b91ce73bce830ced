"""A launch's directory, its ports and what is refused before anything is started."""

import json
import os
import shutil
import socket
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.collector.config import CollectorConfig
from penstock.collector.sources.otlp.settings import OtlpSettings
from penstock.deploy.checks import Verdict
from penstock.deploy.private_file import open_private_file
from penstock.deploy.up.launch import LaunchFailedError
from penstock.deploy.up.layout import (
    Layout,
    address_lines,
    claimed,
    read_running,
    write_ports_from,
    write_running,
)
from penstock.deploy.up.preflight import (
    NotStartedError,
    check_launch,
    check_nodes,
    require_launch,
    require_writable,
)
from penstock.deploy.up.supervision import GaveUp
from penstock.deploy.up.supervisor import rotate_log, truncate_log
from penstock.deploy.up.topology import (
    DEFAULT_PORTS,
    PORTS_RESERVED,
    Topology,
    addresses,
    collector_document,
    default_ports,
    free_ports,
    launch_topology,
    logd_document,
    logd_parts,
    retention_bytes,
    write_configs,
)
from penstock.logd.config import LogdConfig
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
    ports = free_ports(default_ports(["logd"]))
    assert set(ports) == set(DEFAULT_PORTS) | {"logd_fetch", "logd_admin"}
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
    assert check_nodes(layout, 3).verdict is Verdict.OK
    for part in logd_parts(3):
        layout.data(part).mkdir()
    assert check_nodes(layout, 3).verdict is Verdict.OK
    found = check_nodes(layout, 1)
    assert (found.verdict, found.exit_code) == (Verdict.WRONG, ExitCode.CONFIG)
    assert "of 3 logd, not of 1" in found.found
    assert "--nodes 3" in found.fix


def test_ports_of_its_own_are_all_different_and_within_those_that_belong_to_it() -> None:
    ports = default_ports(logd_parts(5), 20_000)
    assert set(ports) == set(default_ports(logd_parts(5)))
    assert len(set(ports.values())) == len(ports)
    assert {port // PORTS_RESERVED for port in ports.values()} == {200}
    fewer = default_ports(logd_parts(1), 20_000)
    assert {"nats": 20_000, "console": 20_002, "logd_fetch": 20_010}.items() <= fewer.items()


def test_ports_of_its_own_are_those_of_the_next_start_too(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert launch_topology(layout, nats_url=None, nodes=1).ports["nats"] == DEFAULT_PORTS["nats"]
    write_ports_from(layout, 20_100)
    remembered = launch_topology(layout, nats_url=None, nodes=1)
    assert remembered.ports == default_ports(["logd"], 20_100)
    told = launch_topology(layout, nats_url=None, nodes=1, ports_from=20_200)
    assert told.ports["nats"] == 20_200
    layout.ports.write_text("{}")
    with pytest.raises(ConfigError, match="holds no port number"):
        launch_topology(layout, nats_url=None, nodes=1)


def test_what_one_needs_next_is_named_as_the_users_settings_leave_it(tmp_path: Path) -> None:
    topology = Topology(Layout(tmp_path), default_ports(["logd"]))
    found = addresses(topology)
    assert found["console"] == "http://127.0.0.1:9299/"
    assert found["otlp_grpc"] == "http://127.0.0.1:4317"
    assert (found["fetch"], found["forward"]) == ("127.0.0.1:9293", "127.0.0.1:24224")
    assert found["lake"] == str(tmp_path / "lake")
    lines = "\n".join(address_lines(found))
    assert all(text in lines for text in found.values())
    overlay = {
        "collector": {"sources": [{"type": "otlp", "grpc": None, "http": "127.0.0.1:4999"}]},
        "router": {"sinks": {"lake": None}},
    }
    changed = addresses(replace(topology, overlay=overlay))
    assert set(found) - set(changed) == {"otlp_grpc", "otlp_http", "lake"}


def test_otlp_is_taken_by_default_and_from_this_machine_alone(tmp_path: Path) -> None:
    document = collector_document(Topology(Layout(tmp_path), default_ports(["logd"])))
    sources = CollectorConfig.model_validate(document).sources
    (otlp,) = [source for source in sources if isinstance(source, OtlpSettings)]
    assert (otlp.grpc, otlp.http) == ("127.0.0.1:4317", "127.0.0.1:4318")


def test_nodes_found_one_cluster_and_everybody_knows_them_all(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    for path in (layout.config, layout.logs):
        path.mkdir()
    topology = Topology(layout, default_ports(logd_parts(3)), nodes=3)
    write_configs(topology)
    nodes = [_written(layout, part) for part in logd_parts(3)]
    assert len({node["data_dir"] for node in nodes}) == 3
    assert {node["node"] for node in nodes} == set(nodes[0]["cluster"]["initial_members"])
    assert all(
        node["cluster"]["initial_members"][node["node"]] == node["cluster"]["peer"]
        for node in nodes
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


def test_what_a_check_finds_wrong_is_refused_before_anything_starts(tmp_path: Path) -> None:
    topology = Topology(Layout(tmp_path), free_ports(default_ports(["logd"])))
    assert all(one.verdict is not Verdict.WRONG for one in check_launch(topology))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", topology.ports["logd_fetch"]))
        taken.listen()
        with pytest.raises(NotStartedError, match=r"port logd fetch: .*in use") as caught:
            require_launch(topology)
        assert "--ports-from" in caught.value.fix
        assert caught.value.exit_code is ExitCode.UNAVAILABLE
        with pytest.raises(NotStartedError, match="2 checks failed") as caught:
            require_launch(replace(topology, nats_url="nats://127.0.0.1:1"))
    assert "no NATS server at nats://127.0.0.1:1" in str(caught.value)
    assert caught.value.exit_code is ExitCode.UNAVAILABLE


def test_a_result_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    require_writable(tmp_path / "result.json")
    with pytest.raises(ConfigError, match="--json"):
        require_writable(tmp_path / "no" / "result.json")


def test_the_url_of_the_nats_server_is_shown_without_credentials(tmp_path: Path) -> None:
    topology = Topology(Layout(tmp_path), {}, nats_url="nats://me:s3cret@10.0.0.5:4222")
    assert topology.nats() == "nats://me:s3cret@10.0.0.5:4222"
    assert topology.nats_shown() == "nats://10.0.0.5:4222"


def test_streams_keep_a_week_and_a_quarter_of_the_disk_at_most(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "state")
    topology = launch_topology(layout, nats_url=None, nodes=1)
    free = shutil.disk_usage(tmp_path).free
    assert topology.retention_bytes is not None
    assert topology.retention_bytes == pytest.approx(free / 4, rel=0.02)
    streams = LogdConfig.model_validate(logd_document(topology, "logd")).streams
    retention = [stream.stream_config().retention for stream in streams]
    assert {limits.age_s for limits in retention} == {7 * 86_400}
    kept = sum(limits.bytes or 0 for limits in retention)
    assert topology.retention_bytes - 5 < kept <= topology.retention_bytes
    assert "7 days" in addresses(topology)["retention"]


def test_what_the_streams_hold_counts_as_free_for_their_bound(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    before = retention_bytes(layout, 1)
    held = 1 << 40  # sparse: it takes no room
    layout.data("logd").mkdir()
    with (layout.data("logd") / "segment").open("wb") as segment:
        segment.truncate(held)
    assert retention_bytes(layout, 1) - before == pytest.approx(held / 4, rel=0.02)


def test_a_log_that_grows_is_emptied_while_its_writer_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "router.log"
    with open_private_file(log) as writer:
        writer.write(b"first\n")
        writer.flush()
        truncate_log(log, 100)
        assert log.read_bytes() == b"first\n", "within its bound"
        truncate_log(log, 4)
        writer.write(b"second\n")
        writer.flush()
    assert log.read_bytes() == b"second\n"
    older = tmp_path / "router.log.1"
    assert older.read_bytes() == b"first\n"
    assert stat.S_IMODE(older.stat().st_mode) == 0o600


def test_what_a_part_prints_and_its_log_are_set_aside_beside_each_other(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    for path in (layout.log("router"), layout.output("router")):
        rotate_log(path, 4)
        path.write_text(path.name)
        rotate_log(path, 4)
    assert sorted(path.name for path in layout.logs.iterdir()) == ["router.log.1", "router.out.1"]


@pytest.mark.parametrize(
    ("code", "has_settings", "is_named"), [(78, True, True), (78, False, False), (69, True, False)]
)
def test_a_part_that_refuses_its_configuration_leads_to_the_users_own_file(
    tmp_path: Path, *, code: int, has_settings: bool, is_named: bool
) -> None:
    """Each start writes the file that the part names: a correction there is lost."""
    layout = Layout(tmp_path)
    error = LaunchFailedError(layout, GaveUp("logd", code), has_settings=has_settings)
    assert ("in the file given with --config" in error.fix) == is_named
    assert error.exit_code == code
