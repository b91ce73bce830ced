"""The sources syslog and socket with daemons that people run as senders, by Debian."""

import json
from pathlib import Path

import pytest

from tests.support.collector import Collector
from tests.support.debian_daemons import daemon
from tests.support.logd import Logd
from tests.support.processes import free_port, running
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

STREAMS = [{"name": "logs", "subject": "telemetry.logs.>"}]
LINES = ["plain", 'with "quotes" and [brackets]', "naïve ☃", "x" * 5000, "a  b\tc"]


def rsyslog_config(directory: Path, log: Path, port: int) -> str:
    """Both formats, both framings and UDP, told apart by their tags' place in the message."""
    ways = (
        ("tcp", "RSYSLOG_SyslogProtocol23Format", 'TCP_Framing="octet-counted"'),
        ("tcp", "RSYSLOG_SyslogProtocol23Format", 'TCP_Framing="traditional"'),
        ("tcp", "RSYSLOG_TraditionalForwardFormat", 'TCP_Framing="octet-counted"'),
        ("udp", "RSYSLOG_SyslogProtocol23Format", ""),
    )
    actions = "".join(
        f'action(type="omfwd" target="127.0.0.1" port="{port}" protocol="{protocol}"'
        f' template="{template}" {framing})\n'
        for protocol, template, framing in ways
    )
    return (
        f'global(workDirectory="{directory}" maxMessageSize="16k")\n'
        'module(load="imfile" mode="inotify")\n'
        f'input(type="imfile" File="{log}" Tag="app:" Severity="warning" Facility="local0")\n'
        f"{actions}"
    )


def test_what_rsyslog_forwards_arrives_as_it_was(tmp_path: Path, nats_url: str) -> None:
    rsyslogd = daemon("rsyslogd", package="rsyslog")
    found = rsyslogd.modules("rsyslog")
    modules = ["-M", found] if found else []
    port, log = free_port(), tmp_path / "app.log"
    source = {"type": "syslog", "udp": f"127.0.0.1:{port}", "tcp": f"127.0.0.1:{port}"}
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(tmp_path / "collector", nats_url, [source]) as collector,
    ):
        log.write_text("".join(f"{line}\n" for line in LINES))
        config = tmp_path / "rsyslog.conf"
        config.write_text(rsyslog_config(tmp_path, log, port))
        arguments = [rsyslogd.path, "-n", *modules, "-f", config, "-i", tmp_path / "pid"]
        with running(*arguments, environment=rsyslogd.environment):
            expected = sorted(LINES * 4)
            wait_until(lambda: len(logd.values("logs")) >= len(expected))
        records = [_record(value) for value in logd.values("logs")]
        assert sorted(body for body, *_ in records) == expected
        assert {severity for _, severity, _ in records} == {13}
        assert sorted(form for *_, form in records).count("rfc3164") == len(LINES)
        wait_until(collector.is_idle)


def test_what_rsyslog_forwards_as_json_arrives_over_a_socket(tmp_path: Path, nats_url: str) -> None:
    rsyslogd = daemon("rsyslogd", package="rsyslog")
    found = rsyslogd.modules("rsyslog")
    modules = ["-M", found] if found else []
    port, log = free_port(), tmp_path / "app.log"
    source = {"type": "socket", "tcp": f"127.0.0.1:{port}", "codec": "json"}
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(tmp_path / "collector", nats_url, [source]) as collector,
    ):
        log.write_text("".join(f"{line}\n" for line in LINES))
        config = tmp_path / "rsyslog.conf"
        config.write_text(
            f'global(workDirectory="{tmp_path}" maxMessageSize="16k")\n'
            'module(load="imfile" mode="inotify")\n'
            f'input(type="imfile" File="{log}" Tag="app:" Severity="warning")\n'
            'template(name="json" type="list" option.jsonf="on") {\n'
            '  property(outname="message" name="msg" format="jsonf")\n'
            '  property(outname="level" name="syslogseverity-text" format="jsonf")\n'
            "}\n"
            f'action(type="omfwd" target="127.0.0.1" port="{port}" protocol="tcp"'
            ' template="json")\n'
        )
        arguments = [rsyslogd.path, "-n", *modules, "-f", config, "-i", tmp_path / "pid"]
        with running(*arguments, environment=rsyslogd.environment):
            wait_until(lambda: len(logd.values("logs")) >= len(LINES))
        stored = [json.loads(value or b"") for value in logd.values("logs")]
        assert sorted(one["body"] for one in stored) == sorted(LINES)
        assert {one["severity_text"] for one in stored} == {"WARN"}
        wait_until(collector.is_idle)


def test_what_syslog_ng_forwards_arrives_as_it_was(tmp_path: Path, nats_url: str) -> None:
    syslog_ng = daemon("syslog-ng", package="syslog-ng-core")
    found = syslog_ng.modules("syslog-ng")
    modules = [f"--module-path={found}"] if found else []
    port, log = free_port(), tmp_path / "app.log"
    source = {"type": "syslog", "udp": None, "tcp": f"127.0.0.1:{port}"}
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(tmp_path / "collector", nats_url, [source]) as collector,
    ):
        log.write_text("".join(f"{line}\n" for line in LINES))
        config = tmp_path / "syslog-ng.conf"
        config.write_text(
            "@version: 3.35\noptions { log-msg-size(16384); };\n"
            f'source s {{ file("{log}" flags(no-parse) follow-freq(0.1)); }};\n'
            f'destination d {{ syslog("127.0.0.1" port({port}) transport("tcp")); }};\n'
            "log { source(s); destination(d); };\n"
        )
        state = ["-R", tmp_path / "persist", "-c", tmp_path / "ctl", "-p", tmp_path / "pid"]
        arguments = [syslog_ng.path, "-F", "--no-caps", *modules, "-f", config, *state]
        with running(*arguments, environment=syslog_ng.environment):
            wait_until(lambda: len(logd.values("logs")) >= len(LINES))
        bodies = sorted(_record(value)[0] for value in logd.values("logs"))
        assert bodies == sorted(LINES)
        wait_until(collector.is_idle)


def _record(value: bytes | None) -> tuple[str, int, str]:
    """Body, severity and what was found of a syslog message."""
    record = json.loads(value or b"")
    form = record["attributes"]["log.syslog.format"]
    return record["body"], record["severity_number"], form
