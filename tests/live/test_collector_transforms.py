"""A graph of transforms in a running collector: every record arrives or is accounted for."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.logd.storage import Checkpoint
from tests.support.collector import Collector, UnixSender, log_line
from tests.support.logd import Logd
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

STREAMS = [{"name": "logs", "subject": "telemetry.>"}, {"name": "odd", "subject": "odd.>"}]
NUMBER = "int(extract(body, '([0-9]+)'))"
TRANSFORMS: dict[str, Any] = {
    "thirds": {"type": "filter", "inputs": ["apps"], "where": f"{NUMBER} % 3 > 0"},
    "odd": {
        "type": "route",
        "inputs": ["thirds"],
        "routes": {"odd": {"where": f"{NUMBER} % 2 == 1", "subject": "odd.{kind}.{service}"}},
    },
    "twice": {"type": "edit", "inputs": ["thirds"], "set": {"attributes.copy": "true"}},
    "broken": {
        "type": "edit",
        "inputs": ["odd.unmatched"],
        "set": {"severity_number": "body == 'number 4' ? 99 : 9"},
    },
    "counted": {
        "type": "logs_to_metrics",
        "inputs": ["thirds"],
        "name": "t.records",
        "interval_s": 0.1,
    },
}
PER_BATCH = 20


def numbered(batch: int) -> list[bytes]:
    first = (batch - 1) * PER_BATCH
    return [log_line(number) for number in range(first, first + PER_BATCH)]


def test_a_graph_loses_nothing_through_a_kill(tmp_path: Path, nats_url: str) -> None:
    socket = tmp_path / "c.sock"
    sources = [{"type": "unix", "name": "apps", "path": str(socket)}]
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(tmp_path / "c", nats_url, sources, transforms=TRANSFORMS) as collector,
    ):
        with UnixSender(socket, "s", numbered) as sender:
            wait_until(lambda: sender.acked >= 5, what="acks")
            collector.restart(kill=True)
            wait_until(lambda: sender.acked >= 40, what="acks after the kill")
            sender.stop()
            wait_until(collector.is_idle, what="everything delivered")
        wait_until(
            lambda: counted_in(logd) >= collector.account("apps")["aggregated"] > 0,
            what="the metrics of all that was counted since the kill",
        )
        wait_until(collector.is_idle, what="all acknowledged")
        last = sender.acked * PER_BATCH
        records = [json.loads(value) for value in logd.values("logs") if value]
        logs = [record for record in records if record["kind"] == "log"]
        kept = [number for number in range(last) if number % 3]
        assert below(last, [r for r in logs if "attributes" in r]) == kept
        even = [number for number in kept if number % 2 == 0 and number != 4]
        assert below(last, [r for r in logs if "attributes" not in r]) == even
        odd = [json.loads(value) for value in logd.values("odd") if value]
        assert below(last, odd) == [number for number in kept if number % 2]
        account = collector.account("apps")
        assert account["difference"] == 0
        assert account["filtered"] > 0
        assert account["copied"] == 2 * account["aggregated"] > 0
        counted = collector.account("counted")
        assert counted["delivered"] == counted["received"] + counted["recovered"] > 0


def test_a_kill_in_a_window_loses_no_record_of_a_file(tmp_path: Path, nats_url: str) -> None:
    """What transforms held is read again, also where their input had come through the spool."""
    path, socket, beside = tmp_path / "app.log", tmp_path / "c.sock", tmp_path / "beside.log"
    sources: list[dict[str, Any]] = [
        {"type": "file", "name": "files", "include": [str(path)], "service": "app", "poll_ms": 20},
        {"type": "file", "name": "beside", "include": [str(beside)], "service": "b", "poll_ms": 20},
        {"type": "unix", "name": "apps", "path": str(socket)},
    ]
    inputs = ["files", "apps"]
    every = {"key": "resource.service.name", "merge": {"body": "concat"}, "window_s": 4}
    transforms = {
        "joined": {"type": "reduce", "inputs": inputs, **every},
        "counted": {"type": "logs_to_metrics", "inputs": inputs, "name": "n", "interval_s": 4},
    }
    lines = [f"line {number}" for number in range(60)]
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(tmp_path / "c", nats_url, sources, transforms=transforms) as collector,
    ):
        for first in (0, 20, 40):
            with path.open("a") as file, UnixSender(socket, f"s{first}", numbered, window=1) as app:
                file.write("".join(f"{line}\n" for line in lines[first : first + 20]))
                file.flush()
                wait_until(lambda: app.acked >= 2, what="acks")
            wait_until(
                lambda: collector.account("files").get("aggregated", 0) >= 20,
                what="lines that transforms hold",
            )
            with beside.open("a") as file:
                file.write("beside\n")
            wait_until(
                lambda: position(collector, beside) == beside.stat().st_size,
                what="a checkpoint of what was read since",
            )
            if first < 40:
                collector.restart(kill=True)
        wait_until(lambda: counted_in(logd) >= 60 + 3 * 2 * PER_BATCH, what="all counted")
        collector.restart()
        records = [json.loads(value) for value in logd.values("logs") if value]
    found = "\n".join(record["body"] for record in records if record["kind"] == "log").split("\n")
    assert set(lines) <= {*found}
    assert {f"number {number}" for number in range(2 * PER_BATCH)} <= {*found}


def test_after_a_kill_no_transform_makes_again_what_another_one_holds(
    tmp_path: Path, nats_url: str
) -> None:
    """Of a file and of a spool; one joins ten lines, beside one that holds them until the end."""
    path, beside = tmp_path / "app.log", tmp_path / "beside.log"
    sources: list[dict[str, Any]] = [
        {"type": "file", "name": "files", "include": [str(path)], "service": "app", "poll_ms": 20},
        {"type": "file", "name": "beside", "include": [str(beside)], "service": "b", "poll_ms": 20},
    ]
    key = {"type": "reduce", "key": "resource.service.name", "window_s": 600}
    joined = {**key, "merge": {"body": "concat"}}
    transforms = {
        "tens": {**joined, "inputs": ["files"], "max_records": 10, "count": "tens"},
        "all": {**joined, "inputs": ["files"], "count": "all"},
        "twice": {**joined, "inputs": ["tens"], "max_records": 2, "count": "twice"},
        "made": {**joined, "inputs": ["tens"], "count": "made"},
    }
    lines = [f"line {number}" for number in range(40)]

    def groups(name: str) -> list[str]:
        records = [json.loads(value) for value in logd.values("logs") if value]
        return [one["body"] for one in records if name in one.get("attributes", {})]

    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(tmp_path / "c", nats_url, sources, transforms=transforms) as collector,
    ):
        for end in (20, 40):
            with path.open("a") as file:
                file.write("".join(f"{line}\n" for line in lines[end - 20 : end]))
            wait_until(
                lambda: len(groups("twice")) == end // 20,  # noqa: B023 - called at once
                what="two groups of ten as one",
            )
            with beside.open("a") as file:
                file.write("beside\n")
            wait_until(
                lambda: position(collector, beside) == beside.stat().st_size,
                what="a checkpoint of what was read since",
            )
            assert position(collector, path) == 0
            collector.restart(kill=True)
        wait_until(lambda: collector.account("files").get("aggregated") == 2 * 40, what="all read")
        assert collector.account("files")["difference"] == 0
        collector.restart()
        found = {name: groups(name) for name in ("twice", "all", "made")}
    assert found["twice"] == ["\n".join(lines[:20]), "\n".join(lines[20:])]
    assert found["all"] == found["made"] == ["\n".join(lines)]


def position(collector: Collector, path: Path) -> int:
    """How far the checkpoint says that a file is read."""
    document = Checkpoint(collector.data_dir / "checkpoint").load() or {}
    return next((one["position"] for one in document["files"] if one["path"] == str(path)), 0)


def counted_in(logd: Logd) -> float:
    """What the metrics in the log add up to."""
    records = [json.loads(value) for value in logd.values("logs") if value]
    return sum(float(record["value"]) for record in records if record["kind"] == "metric")


def below(last: int, records: list[dict[str, Any]]) -> list[int]:
    """The numbers of records up to the last that was surely acknowledged, each as often as is."""
    numbers = sorted(int(record["body"].split()[1]) for record in records)
    return [number for number in numbers if number < last]
