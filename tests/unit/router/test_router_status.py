"""What `penstock router status` prints, from an admin endpoint; cursors as they are published."""

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from penstock.logd.errors import RefusedError, UnavailableError
from penstock.router.cli.main import cli
from penstock.router.delivery.breaker import STATES
from penstock.router.job.job import INTERVAL_S, CursorPublisher
from penstock.router.read.offsets import Offsets, StreamPartition
from penstock.router.telemetry import StatusCollector
from penstock.service import AdminServer, Health, Stage, Status
from tests.unit.router.sink_rows import TestClock
from tests.unit.router.test_router_config import JOB

CIRCUIT = {"state": "open", "for_s": 4.0, "retry_in_s": 2.5, "opened": 3}
SEEN = Status(
    component="router",
    name="demo",
    version="1",
    health=Health.DEGRADED,
    reasons=("sink/lake: full",),
    stages=(
        Stage(
            "sink/lake",
            received=12,
            sent=10,
            lag=3,
            errors=2,
            detail={"time_replaced_missing": 4, "time_replaced_before_1970": 3, "files": 9},
        ),
    ),
    info={
        "sinks": {
            "lake": {
                "committed": {"logs": 40},
                "restarts": 1,
                "records_per_s": 55.5,
                "batch_s": 31.5,
                "circuit": CIRCUIT,
            }
        },
        "dead_letter_stream": "nobody listens",
        "spark_ui": "http://127.0.0.1:4040",
    },
)


def test_a_status_is_a_table_or_json_and_a_job_that_is_away_is_told(tmp_path: Path) -> None:
    server = AdminServer(lambda: SEEN, CollectorRegistry())
    address = server.start("127.0.0.1:0")
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(JOB | {"admin": address}))
    table = CliRunner().invoke(cli, ["status", str(path)]).output.splitlines()
    whole = CliRunner().invoke(cli, ["status", str(path), "--json"]).output
    server.close()
    assert table[0] == "job demo: degraded, Spark's UI: http://127.0.0.1:4040"
    shown = ["lake", "logs=40", "3", "12", "10", "2", "55.5", "31.5", "1", "7", "open", "2.5s"]
    assert table[1].split()[-2:] == ["times-replaced", "circuit"]
    assert table[2].split() == shown
    assert table[3:] == [
        "not all dead letters are in dead_letter_stream: nobody listens",
        "sink/lake: full",
    ]
    assert json.loads(whole)["stages"][0]["lag"] == 3
    away = CliRunner().invoke(cli, ["status", str(path)])
    assert away.exit_code == 69
    assert away.stderr == (
        f"error: the job 'demo' does not run: nothing listens at {address}\n"
        "  fix: start it with `penstock router run`; if it runs, correct its key `admin`\n"
    )


def answers(body: bytes) -> str:
    """The address of something that answers so, once, whatever it is asked."""
    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        with server, server.accept()[0] as connection:
            connection.recv(65536)
            connection.sendall(body)

    threading.Thread(target=answer, daemon=True).start()
    return f"127.0.0.1:{server.getsockname()[1]}"


def of_http(document: object) -> bytes:
    body = json.dumps(document).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


OTHER = {"component": "router", "name": "other", "health": "ready"}
OTHER |= {"reasons": [], "stages": [], "info": {}}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (of_http({"component": "logd"}), "something else than a router"),
        (of_http({"component": "router", "name": "demo"}), "something else than a router"),
        (of_http([1]), "something else than a router"),
        (of_http(OTHER), "the job 'other', and not the job 'demo'"),
        (of_http([]).replace(b"2", b"[", 1), "does not speak HTTP"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n" + b"[" * 9, "something else"),
        (b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", "401 Unauthorized"),
        (b"", "cannot be reached at 127.0.0.1:"),
    ],
)
def test_whatever_else_answers_is_no_status(tmp_path: Path, said: bytes, told: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(JOB | {"admin": answers(said)}))
    for_people = CliRunner().invoke(cli, ["status", str(path)])
    assert for_people.exit_code == 69
    assert told in for_people.output
    assert "Traceback" not in for_people.output


def test_a_stop_of_a_replay_takes_no_other_answer(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    path = tmp_path / "job.yaml"
    for said, told in ((of_http([1]), "is no router"), (b"SSH-2.0\r\n", "does not speak HTTP")):
        job = JOB | {"admin": answers(said), "actions_token_file": str(token)}
        path.write_text(yaml.safe_dump(job))
        stopped = CliRunner().invoke(cli, ["stop-replay", str(path)])
        assert (stopped.exit_code, told in stopped.output) == (69, True), stopped.output
    for held, told in ((b"two\nlines", "one line"), (b"hush \xff", "no text in UTF-8")):
        token.write_bytes(held)
        stopped = CliRunner().invoke(cli, ["stop-replay", str(path)])
        assert (stopped.exit_code, told in stopped.output) == (78, True), stopped.output
        assert "0xff" not in stopped.output


def test_a_circuit_is_a_metric() -> None:
    registry = CollectorRegistry()
    registry.register(StatusCollector(lambda: SEEN))
    found = {
        state: registry.get_sample_value(
            "penstock_router_circuit", {"sink": "lake", "state": state}
        )
        for state in STATES
    }
    assert found == {"closed": 0, "open": 1, "half_open": 0, "paused": 0, "rejected": 0}
    opened = registry.get_sample_value("penstock_router_circuit_opened_total", {"sink": "lake"})
    assert opened == 3


class Cursors:
    """A client that remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, int, int]] = []
        self.away = False
        self.gone: set[str] = set()

    def set_cursors(self, wanted: Any, *, rewind: bool) -> None:
        if self.away:
            raise UnavailableError("logd is away")
        if len(wanted) > 200:
            raise RefusedError("BAD_REQUEST", "at most 200 cursors")
        if gone := sorted({it.stream for it in wanted} & self.gone):
            raise RefusedError("UNKNOWN_STREAM", f"there is no stream {gone[0]}")
        self.told += [(it.consumer, it.stream, it.partition, it.offset) for it in wanted]


def test_positions_are_published_as_they_change_and_not_too_often() -> None:
    client, clock = Cursors(), TestClock()
    published = CursorPublisher("job", ["logs"], client, clock)  # type: ignore[arg-type]
    at = StreamPartition("logs", 0)
    published.publish({"lake": Offsets({at: 5}, {"logs": "a"})})
    published.publish({"lake": Offsets({at: 6}, {"logs": "a"})})
    assert client.told == [("job/lake", "logs", 0, 5)]
    clock.sleep(INTERVAL_S)
    client.away = True
    published.publish({"lake": Offsets({at: 6}, {"logs": "a"})})
    assert published.problem == "logd is away"
    client.away = False
    published.publish({"lake": Offsets({at: 6}, {"logs": "a"})}, now=True)
    published.publish({"lake": Offsets({at: 6}, {"logs": "a"})}, now=True)
    assert client.told[1:] == [("job/lake", "logs", 0, 6)]
    assert published.problem is None


def test_many_positions_are_published_in_pieces_that_logd_takes() -> None:
    client, clock = Cursors(), TestClock()
    published = CursorPublisher("job", ["logs"], client, clock)  # type: ignore[arg-type]
    at = Offsets({StreamPartition("logs", number): 5 for number in range(64)}, {"logs": "a"})
    published.publish({f"sink{number}": at for number in range(7)})
    assert published.problem is None
    assert len(set(client.told)) == len(client.told) == 7 * 64


def test_a_stream_that_is_gone_keeps_no_cursor_of_another_from_being_published() -> None:
    client, clock = Cursors(), TestClock()
    streams = ["logs", "more", "traces"]
    published = CursorPublisher("job", streams, client, clock)  # type: ignore[arg-type]
    read_once = StreamPartition("left", 0)
    position = Offsets({StreamPartition(name, 0): 5 for name in streams} | {read_once: 5})
    client.gone = {"more", "left"}
    for _ in range(2):
        published.publish({"hook": position, "lake": position}, now=True)
        assert published.problem == "there is no stream more"
    assert sorted(client.told) == [
        (f"job/{sink}", stream, 0, 5) for sink in ("hook", "lake") for stream in ("logs", "traces")
    ]
    client.gone.clear()
    published.publish({"hook": position, "lake": position}, now=True)
    assert published.problem is None
    assert [told[1] for told in client.told[4:]] == ["more", "more"]
