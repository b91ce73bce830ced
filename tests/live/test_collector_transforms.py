"""A graph of transforms in a running collector: every record arrives or is accounted for."""

import json
from pathlib import Path
from typing import Any

import pytest

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


def counted_in(logd: Logd) -> float:
    """What the metrics in the log add up to."""
    records = [json.loads(value) for value in logd.values("logs") if value]
    return sum(float(record["value"]) for record in records if record["kind"] == "metric")


def below(last: int, records: list[dict[str, Any]]) -> list[int]:
    """The numbers of records up to the last that was surely acknowledged, each as often as is."""
    numbers = sorted(int(record["body"].split()[1]) for record in records)
    return [number for number in numbers if number < last]
