"""What `penstock doctor` finds, and that each finding that is not well says what to do."""

import json
import socket
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from typing_extensions import override

from penstock.base.clock import Clock, SystemClock
from penstock.base.errors import ExitCode
from penstock.deploy import checks, doctor
from penstock.deploy.checks import Finding, Verdict
from penstock.deploy.cli import cli
from penstock.deploy.init import Authority
from tests.support.privileges import closed
from tests.support.processes import free_port

MOUNTS = "/dev/vda / ext4 rw 0 0\ntmpfs /fast tmpfs rw 0 0\nhost:/a /fast/far nfs4 rw 0 0\n"


class Standing(Clock):
    """A clock that stands."""

    def __init__(self, unix_ns: int) -> None:
        self._unix_ns = unix_ns

    @override
    def unix_ns(self) -> int:
        return self._unix_ns

    @override
    def monotonic_ns(self) -> int:
        return 0


def says(finding: Finding, verdict: Verdict) -> bool:
    """Whether it is that, and comes with what to do unless all is well."""
    return finding.verdict is verdict and bool(finding.fix) == (verdict is not Verdict.OK)


@pytest.mark.parametrize(
    ("free", "place", "verdict"),
    [
        (100 << 30, "/", Verdict.OK), (2 << 30, "/", Verdict.WARNING),
        (1 << 20, "/", Verdict.WRONG),
        (100 << 30, "/fast", Verdict.WARNING), (100 << 30, "/fast/far", Verdict.WARNING),
    ],
)  # fmt: skip
def test_a_disk_is_judged_by_its_space_and_by_whether_it_keeps_what_it_is_given(
    tmp_path: Path, free: int, place: str, verdict: Verdict
) -> None:
    mounts = MOUNTS.replace(f" {place} ", f" {tmp_path} ") if place != "/" else MOUNTS
    finding = checks.check_disk("disk", tmp_path / "not" / "yet", mounts, lambda _: free)
    assert says(finding, verdict)
    assert ("at least 512 MiB are needed" in finding.found) == (verdict is Verdict.WRONG)


def test_a_directory_that_cannot_be_written_to_is_wrong(tmp_path: Path) -> None:
    with closed(tmp_path, mode=0o555):
        finding = checks.check_disk("disk", tmp_path, MOUNTS)
    assert "cannot be written to" in finding.found
    assert says(finding, Verdict.WRONG)


def test_a_place_below_a_file_is_no_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    finding = checks.check_disk("disk", tmp_path / "file" / "state", MOUNTS)
    assert says(finding, Verdict.WRONG)
    assert "is no directory" in finding.found


def test_a_place_that_this_user_may_not_even_look_at_is_wrong_and_no_error(
    tmp_path: Path,
) -> None:
    place = tmp_path / "closed" / "state"
    place.mkdir(parents=True)
    with closed(place.parent):
        assert says(checks.check_disk("disk", place, MOUNTS), Verdict.WRONG)


@pytest.mark.parametrize(
    ("soft", "verdict"), [(65536, Verdict.OK), (1024, Verdict.WARNING), (256, Verdict.WRONG)]
)
def test_few_open_files_are_told(soft: int, verdict: Verdict) -> None:
    assert says(checks.check_open_files(soft, 65536), verdict)


def test_little_memory_is_told() -> None:
    assert says(checks.check_memory("MemTotal: 1 kB\nMemAvailable: 8000000 kB\n"), Verdict.OK)
    assert says(checks.check_memory("MemAvailable: 1200000 kB\n"), Verdict.OK)
    assert says(checks.check_memory("MemAvailable: 1200000 kB\n", nodes=3), Verdict.WARNING)
    assert says(checks.check_memory("MemAvailable: 500000 kB\n"), Verdict.WARNING)


def test_a_clock_that_was_never_set_is_wrong() -> None:
    assert says(checks.check_clock(Standing(10**18)), Verdict.WRONG)
    assert checks.check_clock(SystemClock()).verdict is not Verdict.WRONG


def test_a_port_in_use_and_a_server_that_is_away_are_wrong() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert says(checks.check_port("port", address), Verdict.WRONG)
        assert says(checks.check_reachable("logd", address), Verdict.OK)
    assert says(checks.check_port("port", address), Verdict.OK)
    assert says(checks.check_reachable("logd", address), Verdict.WRONG)


def test_nats_that_is_away_is_told_without_its_password() -> None:
    found = checks.check_nats(f"nats://me:s3cret@127.0.0.1:{free_port()}")
    assert says(found, Verdict.WRONG)
    assert "s3cret" not in found.found


def test_a_url_that_is_not_of_nats_is_a_configuration_error() -> None:
    for url in ("127.0.0.1:4222", "http://a:1", "nats://", "nats://a:port"):
        found = checks.check_nats(url)
        assert says(found, Verdict.WRONG)
        assert found.exit_code is ExitCode.CONFIG


def test_a_nats_server_binary_that_is_missing_or_does_not_run_is_wrong(tmp_path: Path) -> None:
    assert says(checks.check_nats_server(None), Verdict.WRONG)
    broken = tmp_path / "nats-server"
    broken.write_text("no program")
    broken.chmod(0o755)
    assert says(checks.check_nats_server(broken), Verdict.WRONG)
    assert says(checks.check_nats_server(checks.nats_server_binary()), Verdict.OK)


@pytest.mark.parametrize(
    ("says_version", "verdict"),
    [
        ("systemd 252 (252.36-1~deb12u1)", Verdict.OK),
        ("systemd 246 (v246)", Verdict.WARNING),
        ("", Verdict.OK),
    ],
)
def test_a_systemd_too_old_for_the_units_is_told(
    tmp_path: Path, says_version: str, verdict: Verdict
) -> None:
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(f"#!/bin/sh\necho '{says_version}'\n")
    systemctl.chmod(0o755)
    assert says(checks.check_systemd(str(systemctl)), verdict)
    assert says(checks.check_systemd(None), Verdict.OK)


def test_a_socket_is_checked_by_making_one_however_long_the_path_is(tmp_path: Path) -> None:
    place = tmp_path / ("x" * 120)
    place.mkdir()
    assert says(checks.check_socket(place / "not" / "yet" / "collector.sock"), Verdict.OK)
    assert list(place.iterdir()) == []


def test_a_directory_that_is_closed_or_a_file_in_the_way_keeps_a_socket_from_being_made(
    tmp_path: Path,
) -> None:
    with closed(tmp_path, mode=0o555):
        assert says(checks.check_socket(tmp_path / "collector.sock"), Verdict.WRONG)
    (tmp_path / "collector.sock").write_text("")
    assert says(checks.check_socket(tmp_path / "collector.sock"), Verdict.WRONG)
    # procfs takes no sockets, as some network file systems
    assert says(checks.check_socket(Path("/proc/self/collector.sock")), Verdict.WRONG)


@pytest.mark.parametrize(
    ("days", "verdict"), [(0, Verdict.OK), (800, Verdict.WARNING), (900, Verdict.WRONG)]
)
def test_a_certificate_that_ends_is_told_before(
    tmp_path: Path, days: int, verdict: Verdict
) -> None:
    now = SystemClock()
    authority = Authority("test", tmp_path / "ca.pem", tmp_path / "ca.key", now)
    cert, _ = authority.sign("a", ["a"])
    (tmp_path / "a.pem").write_bytes(cert)
    later = Standing(now.unix_ns() + days * 86_400 * 10**9)
    assert says(checks.check_certificate(tmp_path / "a.pem", later), verdict)


def test_what_is_no_certificate_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "a.pem").write_text("none")
    for name in ("a.pem", "b.pem"):
        assert says(checks.check_certificate(tmp_path / name, SystemClock()), Verdict.WRONG)


def run_doctor(*arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
    result = CliRunner().invoke(cli, ["doctor", "--json", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, {one["about"]: one for one in json.loads(result.stdout)}


def test_a_configuration_is_examined_for_what_it_names(tmp_path: Path) -> None:
    config = tmp_path / "logd.yaml"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        document = {
            "data_dir": str(tmp_path / "data"),
            "nats": {"url": f"nats://127.0.0.1:{free_port()}"},
            "fetch": f"127.0.0.1:{taken.getsockname()[1]}",
            "admin": f"127.0.0.1:{free_port()}",
        }
        config.write_text(yaml.safe_dump(document))
        code, found = run_doctor("--config", str(config))
    assert code == 1
    verdicts = {about: one["verdict"] for about, one in found.items()}
    assert {verdicts[about] for about in ("nats", "port fetch")} == {"wrong"}
    assert {verdicts[about] for about in ("configuration", "port admin")} == {"ok"}


def test_a_consoles_configuration_is_examined_as_one(tmp_path: Path) -> None:
    config = tmp_path / "console.yaml"
    document = {
        "listen": f"127.0.0.1:{free_port()}",
        "parts": {"logd-1": f"http://127.0.0.1:{free_port()}"},
        "logd": f"127.0.0.1:{free_port()}",
    }
    config.write_text(yaml.safe_dump(document))
    code, found = run_doctor("--config", str(config))
    assert found["configuration"]["verdict"] == "ok", found["configuration"]
    assert found["port listen"]["verdict"] == "ok"
    assert {found[about]["verdict"] for about in ("logd", "part logd-1")} == {"wrong"}
    assert code == 1


def test_a_configuration_that_is_wrong_is_told_with_its_fix(tmp_path: Path) -> None:
    config = tmp_path / "router.yaml"
    config.write_text("job: lake\nstreams: []\n")
    code, found = run_doctor("--config", str(config))
    assert code == 1
    assert "streams" in found["configuration"]["found"]
    assert found["configuration"]["fix"]


def test_settings_for_up_are_said_to_be_no_configuration_of_a_part(tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("logd: {streams: []}\nrouter: {}\n")
    code, found = run_doctor("--config", str(config))
    assert code == 1
    assert "has sections for the parts" in found["configuration"]["found"]
    assert "a part's own" in found["configuration"]["fix"]


def test_each_line_of_a_finding_stands_in_its_column(tmp_path: Path) -> None:
    config = tmp_path / "logd.yaml"
    config.write_text("data_dirr: x\n")
    lines = CliRunner().invoke(cli, ["doctor", "--config", str(config)]).stdout.splitlines()
    columns = {line.index(str(config)) for line in lines if str(config) in line}
    assert len(columns) == 1, lines
    assert sum(str(config) in line for line in lines) == 2, lines


def test_a_part_that_is_not_well_is_told_with_its_log_and_the_page_that_helps(
    tmp_path: Path,
) -> None:
    finding = doctor.check_part("logd", f"http://127.0.0.1:{free_port()}", tmp_path / "logd.log")
    assert finding.verdict is Verdict.WRONG
    assert str(tmp_path / "logd.log") in finding.fix


NEEDED_BY_UP = (
    "python", "pyspark", "open files", "memory", "clock", "systemd", "java", "disk", "socket",
    "nats-server", "port nats", "port logd fetch", "port otlp grpc", "port console",
)  # fmt: skip


def test_an_empty_directory_is_examined_for_a_first_start(tmp_path: Path) -> None:
    code, found = run_doctor("--dir", str(tmp_path))
    assert set(NEEDED_BY_UP) <= set(found)
    wrong = [name for name, one in found.items() if one["verdict"] == Verdict.WRONG.value]
    assert code == (1 if wrong else 0), found
    assert all(one["fix"] for one in found.values() if one["verdict"] != "ok")


def test_a_launch_that_is_not_for_this_user_is_a_finding_among_others(tmp_path: Path) -> None:
    running = tmp_path / "running.json"
    running.write_text("{}")
    with closed(running):
        code, found = run_doctor("--dir", str(tmp_path))
    assert code == 1
    assert found["directory"]["verdict"] == Verdict.WRONG.value
    assert "disk" in found
