"""What `penstock router status` prints, from an admin endpoint; cursors as they are published."""

import json
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from penstock.logd.errors import UnavailableError
from penstock.router.cli import cli
from penstock.router.core.breaker import STATES
from penstock.router.core.offsets import Offsets, StreamPartition
from penstock.router.positions import INTERVAL_S, PublishedPositions
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
    stages=(Stage("sink/lake", received=12, sent=10, lag=3, errors=2),),
    info={
        "sinks": {
            "lake": {
                "committed": {"logs": 40},
                "restarts": 1,
                "records_per_s": 55.5,
                "circuit": CIRCUIT,
            }
        },
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
    shown = ["lake", "logs=40", "3", "12", "10", "2", "55.5", "1", "open", "2.5s"]
    assert table[2].split() == shown
    assert table[3] == "sink/lake: full"
    assert json.loads(whole)["stages"][0]["lag"] == 3
    away = CliRunner().invoke(cli, ["status", str(path)])
    assert away.exit_code == 69, away.output


def test_a_circuit_is_a_metric() -> None:
    registry = CollectorRegistry()
    registry.register(StatusCollector(lambda: SEEN))
    found = {
        state: registry.get_sample_value(
            "penstock_router_circuit", {"sink": "lake", "state": state}
        )
        for state in STATES
    }
    assert found == {"closed": 0, "open": 1, "half_open": 0, "paused": 0}
    opened = registry.get_sample_value("penstock_router_circuit_opened_total", {"sink": "lake"})
    assert opened == 3


class Cursors:
    """A client that remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, int, int]] = []
        self.away = False

    def set_cursors(self, wanted: Any, *, rewind: bool) -> None:
        if self.away:
            raise UnavailableError("logd is away")
        self.told += [(it.consumer, it.stream, it.partition, it.offset) for it in wanted]


def test_positions_are_published_as_they_change_and_not_too_often() -> None:
    client, clock = Cursors(), TestClock()
    published = PublishedPositions("job", client, clock)  # type: ignore[arg-type]
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
