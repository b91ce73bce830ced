"""A collector that drops records is asked what became of them, running, killed and stopped."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from penstock.collector import failpoints
from penstock.collector.cli.main import cli
from tests.support.collector import Collector, UnixSender, log_line
from tests.support.logd import Logd
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

STREAMS = [{"name": "logs", "subject": "telemetry.>"}]
PER_BATCH = 10
TRANSFORMS: dict[str, Any] = {
    "thirds": {
        "type": "filter",
        "inputs": ["apps"],
        "where": "int(extract(body, '([0-9]+)')) % 3 > 0",
    },
}


def numbered(batch: int) -> list[bytes]:
    """Ten records, of which one has no kind of record that there is."""
    first = (batch - 1) * PER_BATCH
    lines = [log_line(number, service=f"shop-{number % 2}") for number in range(first, first + 9)]
    return [*lines, b'{"kind":"other","resource":{"service.name":"shop-1"},"body":"odd one"}']


def shown(*arguments: object) -> Result:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result


def lines_of(*arguments: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in shown(*arguments).stdout.splitlines()]


def asked(collector: Collector, **question: Any) -> dict[str, Any]:
    """The answer of the collector's HTTP endpoint."""
    url = f"http://{collector.config['admin']}/records"
    with urllib.request.urlopen(url, json.dumps(question).encode(), timeout=20) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def test_what_a_collector_dropped_is_found_running_after_a_kill_and_stopped(
    tmp_path: Path, nats_url: str
) -> None:
    path = tmp_path / "c.sock"
    sources = [{"type": "unix", "name": "apps", "path": str(path)}]
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS),
        Collector(tmp_path / "c", nats_url, sources, transforms=TRANSFORMS) as collector,
    ):
        with UnixSender(path, "s", numbered, window=1) as sender:
            wait_until(lambda: sender.acked >= 3, what="acks")
            sender.stop()
        wait_until(collector.is_idle, what="idle")
        account = collector.account("apps")
        assert account["filtered"] == sum(
            number % 3 == 0
            for batch in range(sender.acked)
            for number in range(batch * PER_BATCH, batch * PER_BATCH + 9)
        )
        running = lines_of("drops", "show", collector.data_dir, "--json")
        assert len(running) == account["filtered"]
        assert {(one["step"], one["reason"]) for one in running} == {("thirds", "filtered")}
        texts = [one["text"] for one in running]
        assert texts[:3] == ["number 0", "number 3", "number 6"]
        (one,) = lines_of("drops", "show", collector.data_dir, "--json", "--text", "number 3",
                          "--service", "shop-1", "--limit", "1")  # fmt: skip
        assert one["service"] == "shop-1"
        (counted,) = lines_of("drops", "ls", collector.data_dir, "--json", "--step", "thirds")
        assert (counted["recorded"], counted["not_recorded"]) == (len(running), 0)
        assert (
            " filtered by thirds, source apps, shop-0: number 0"
            in shown("drops", "show", collector.data_dir).stdout.splitlines()[0]
        )

        answer = asked(collector, service="shop-1")
        assert answer["drops"] == [one for one in running if one["service"] == "shop-1"]
        assert len(answer["quarantine"]) == account["quarantined"]
        assert all("raw" not in one and one["reason"] for one in answer["quarantine"])
        assert asked(collector, service="shop-0")["quarantine"] == []
        assert asked(collector, text="odd one", limit=1)["drops"] == []
        (kept,) = lines_of("quarantine", "show", collector.data_dir, "--text", "odd", "--limit", 1)
        assert kept["service"] == "shop-1"
        assert lines_of("quarantine", "ls", collector.data_dir, "--service", "shop-0") == []

        collector.restart(kill=True)
        again = lines_of("drops", "show", collector.data_dir, "--json")
        assert again[: len(running)] == running, "what was flushed outlasts a kill"
        assert collector.daemon.stop() == 0
        assert lines_of("drops", "show", collector.data_dir, "--json") == again
        assert "none of them" in shown("drops", "ls", collector.data_dir, "--text", "zzz").stderr


def test_a_kill_after_a_checkpoint_loses_no_drop(tmp_path: Path, nats_url: str) -> None:
    """The process ends within a second of its first drop, when nothing but a checkpoint syncs."""
    path = tmp_path / "c.sock"
    sources = [{"type": "unix", "name": "apps", "path": str(path)}]
    collector = Collector(
        tmp_path / "c", nats_url, sources, transforms=TRANSFORMS, drops={"max_rate": 1e6}
    )
    whole = collector.daemon.program
    collector.daemon.program = ("env", f"{failpoints.VARIABLE}=checkpoint_after_write:2", *whole)
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS),
        collector,
        UnixSender(path, "s", numbered, window=1) as sender,
    ):
        assert collector.daemon.wait(within_s=20) == -9
        collector.daemon.program = whole
        collector.daemon.start()
        acked = sender.acked
        wait_until(lambda: sender.acked > acked, what="an ack after the kill")
        sender.stop()
        wait_until(collector.is_idle, what="idle")
        found = lines_of("drops", "show", collector.data_dir, "--json")
        assert {one["text"] for one in found} >= {
            f"number {number}"
            for batch in range(sender.acked)
            for number in range(batch * PER_BATCH, batch * PER_BATCH + 9)
            if number % 3 == 0
        }
