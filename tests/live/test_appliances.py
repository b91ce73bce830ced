"""Two appliances on one host: their own ports, records, bounds and logs."""

import json
import secrets
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from penstock.deploy.disk_room import Sample, note_sample
from penstock.deploy.up.layout import Layout
from penstock.logd.client import LogClient
from tests.support.mounts import small_file_system
from tests.support.processes import free_port, is_free
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(1200)]

PENSTOCK = Path(sys.executable).parent / "penstock"
DISK = "1100m"
"""So small that the streams of an appliance on it keep the least that any does."""

LOG_MAX_BYTES = 1024
BIG_RECORDS, BIG_BYTES = 200, 16 * 1024
REQUESTS_AT_ONCE = 5
REQUESTS_MAX = 60
"""Requests of big records: 197 MB, of which more than a stream keeps is left when compressed."""


def free_range() -> int:
    """The first of two hundred ports, none of which is anybody's now."""
    while True:
        first = free_port() // 100 * 100
        if first + 200 <= 32_000 and all(map(is_free, range(first, first + 200))):
            return first


@dataclass(slots=True)
class Appliance:
    """What `penstock up --detach` runs in a directory."""

    directory: Path
    ports_from: int
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.config.write_text(yaml.safe_dump(self.settings))

    @property
    def config(self) -> Path:
        return self.directory.with_suffix(".yaml")

    def penstock(self, *arguments: str) -> str:
        """What a command of `penstock` says of this directory."""
        command = [str(PENSTOCK), *arguments, "--dir", str(self.directory)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        return str(done.stdout)

    def up(self, *arguments: str) -> str:
        return self.penstock("up", "--detach", "--config", str(self.config), *arguments)

    def addresses(self) -> dict[str, str]:
        """Where the appliance is reached, as it says itself."""
        found: dict[str, str] = json.loads((self.directory / "running.json").read_text())[
            "addresses"
        ]
        return found

    def send(self, *bodies: str) -> None:
        """Have the collector take a log record for each body, by OTLP over HTTP."""
        records = [{"severityNumber": 9, "body": {"stringValue": body}} for body in bodies]
        name = {"key": "service.name", "value": {"stringValue": "guest"}}
        document = {
            "resourceLogs": [
                {"resource": {"attributes": [name]}, "scopeLogs": [{"logRecords": records}]}
            ]
        }
        request = urllib.request.Request(
            f"{self.addresses()['otlp_http']}/v1/logs",
            json.dumps(document).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert not json.load(answer).get("partialSuccess", {}).get("rejectedLogRecords")

    def bodies(self) -> set[str]:
        """The short bodies of the records that the lake has of the test."""
        found: set[str] = set()
        for path in self.directory.glob("lake/kind=log/**/*.parquet"):
            rows = pq.ParquetFile(path).read(["service", "body"]).to_pylist()
            found |= {it["body"] for it in rows if it["service"] == "guest"}
        return {body for body in found if len(body) < 100}

    def services(self) -> set[str]:
        """Whose logs the lake has."""
        found: set[str] = set()
        for path in self.directory.glob("lake/kind=log/**/*.parquet"):
            found |= set(pq.ParquetFile(path).read(["service"])["service"].to_pylist())
        return found

    def first_offset(self, stream: str) -> int:
        with LogClient(self.addresses()["fetch"]) as log:
            return log.offsets(stream).start


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Appliance, Appliance]]:
    first_port = free_range()
    with small_file_system(tmp_path / "disk", DISK) as disk:
        settings = {"launcher": {"log_max_bytes": LOG_MAX_BYTES}}
        small = Appliance(disk / "small", first_port, settings)
        own_ports = {"launcher": {"ports_from": first_port + 100}}
        other = Appliance(tmp_path / "other", first_port + 100, own_ports)
        try:
            yield small, other
        finally:
            for one in (small, other):
                one.penstock("down")


def test_two_appliances_work_side_by_side_each_within_its_bounds(
    two: tuple[Appliance, Appliance],
) -> None:
    small, other = two
    with ThreadPoolExecutor(2) as pool:
        starting = (
            pool.submit(small.up, "--ports-from", str(small.ports_from)),
            pool.submit(other.up),
        )
        said = [one.result() for one in starting]
    _have_their_own_ports(two)
    assert "streams keep    at most 7 days and" in said[0]
    bound = "MiB" in said[0].partition("at most 7 days and")[2].splitlines()[0]
    assert bound, said[0]

    small.send("to the small one")
    other.send("to the other one")
    wait_until(lambda: small.bodies() and other.bodies(), within_s=60, what="both lakes")
    assert (small.bodies(), other.bodies()) == ({"to the small one"}, {"to the other one"})

    _rotates_logs_while_it_runs(small)
    _deletes_what_is_too_much(small)
    _tells_when_the_room_ends(small)

    before, process = small.addresses(), _launcher(other)
    small.penstock("down")
    small.up()  # without the option
    bounds = dict.fromkeys(["retention"])  # the room of the disk has changed
    assert small.addresses() | bounds == before | bounds
    small.send("after the restart")
    wait_until(lambda: "after the restart" in small.bodies(), within_s=60, what="it works again")
    assert _launcher(other) == process
    assert other.bodies() == {"to the other one"}


def _launcher(one: Appliance) -> int:
    return int(json.loads((one.directory / "running.json").read_text())["pid"])


def _have_their_own_ports(two: tuple[Appliance, Appliance]) -> None:
    for one in two:
        running = json.loads((one.directory / "running.json").read_text())
        found = one.addresses()
        assert json.loads(one.penstock("status", "--json"))["addresses"] == found
        urls = [*running["parts"].values(), found["nats"], found["fetch"], found["console"]]
        ports = {int(url.rstrip("/").rpartition(":")[2]) for url in urls}
        assert ports <= {*range(one.ports_from, one.ports_from + 100)}


def _rotates_logs_while_it_runs(one: Appliance) -> None:
    """The collector's log has more than the limit already when it is ready."""
    logs = one.directory / "logs"
    wait_until((logs / "collector.log.1").exists, within_s=30, what="it is rotated")
    with LogClient(one.addresses()["fetch"]) as log:
        wait_until(lambda: log.offsets("logs").end > 0, what="logs of the parts")
    wait_until(
        lambda: all(path.stat().st_size <= LOG_MAX_BYTES for path in logs.glob("*.log")),
        within_s=30, what="every log is within its bound",
    )  # fmt: skip
    wait_until(
        lambda: "penstock.collector" in one.services(), within_s=60,
        what="what was in the log is in the lake",
    )  # fmt: skip


def _deletes_what_is_too_much(one: Appliance) -> None:
    assert one.first_offset("logs") == 0
    for number in range(REQUESTS_MAX):
        one.send(*(secrets.token_urlsafe(BIG_BYTES * 3 // 4) for _ in range(BIG_RECORDS)))
        if one.first_offset("logs") > 0:
            break
        if number % REQUESTS_AT_ONCE == 0:
            _routes_what_there_is(one, f"big {number}")
    wait_until(lambda: one.first_offset("logs") > 0, within_s=60, what="an old segment goes")
    assert one.first_offset("metrics") == 0


def _routes_what_there_is(one: Appliance, body: str) -> None:
    """Retention takes nothing from the router: that would be a loss, which `status` reports."""
    one.send(body)
    wait_until(lambda: body in one.bodies(), within_s=120, what="the router has caught up")


def _tells_when_the_room_ends(one: Appliance) -> None:
    assert "free on the disk; its rate is not known yet" in one.penstock("status")
    room = Layout(one.directory).room
    newest = json.loads(room.read_text())[-1]
    an_hour_ago = Sample(int(time.time()) - 3600, newest["free_bytes"] + 10 * 1024**2)  # noqa: TID251
    room.unlink()
    note_sample(room, an_hour_ago)
    said = one.penstock("status")
    assert "free on the disk, shrinking by" in said
    assert ": full in" in said
