"""The account over a real collector and a real logd: under load, at rest, with one that is off."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from penstock.deploy.account.command import read_account
from penstock.deploy.account.rows import Row, State, worst
from penstock.deploy.cli import cli
from penstock.logd.storage import Checkpoint
from tests.support.collector import Collector, UnixSender, log_line
from tests.support.console import FakePart
from tests.support.logd import Logd
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

STREAMS = [{"name": "logs", "subject": "telemetry.>"}]
PER_BATCH = 50


def numbered(batch: int) -> list[bytes]:
    first = (batch - 1) * PER_BATCH
    return [log_line(number) for number in range(first, first + PER_BATCH)]


def account(parts: dict[str, str], *, wait_s: float = 0) -> dict[str, Row]:
    return {row.stage: row for row in asyncio.run(read_account(parts, wait_s))}


def shown(parts: dict[str, str]) -> Result:
    urls = [part for url in parts.values() for part in ("--url", url)]
    return CliRunner().invoke(cli, ["account", "--json", "--wait", "1", *urls])


def test_an_account_over_real_parts_balances_and_names_the_part_that_is_off(
    tmp_path: Path, nats_url: str
) -> None:
    path = tmp_path / "c.sock"
    keep = {"quiet": {"type": "sample", "inputs": ["apps"], "ratio": 0.5}}
    sources = [{"type": "unix", "name": "apps", "path": str(path)}]
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(tmp_path / "c", nats_url, sources, transforms=keep) as collector,
    ):
        parts = {
            "collector": f"http://{collector.config['admin']}",
            "logd": f"http://{logd.config['admin']}",
        }
        with UnixSender(path, "s", numbered) as sender:
            wait_until(lambda: sender.acked > 5, what="acks")
            for _ in range(6):
                before = sender.acked
                found = account(parts)
                wait_until(lambda before=before: sender.acked > before, what="load")  # type: ignore[misc]
                assert not {State.OFF, State.UNKNOWN} & {row.state for row in found.values()}, found
            sender.stop()
        wait_until(collector.is_idle, what="idle")
        found = account(parts, wait_s=20)
        assert worst([*found.values()]) is State.BALANCED, found
        total = found["apps"].went["acked"]  # the sender has not read the last acks
        stored = len(logd.values("logs"))
        assert total >= sender.acked * PER_BATCH
        assert found["collector"].went["sampled"] == total - stored > 0
        assert found["collectors → log"].went == {"stored": stored}
        assert found["log"].went["stored"] == stored
        result = shown(parts)
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["state"] == "balanced"

        def claimed() -> dict[str, Any]:
            """What the collector says, and seven records more that it has delivered."""
            status = collector.daemon.status()
            status["info"]["reconciliation"]["apps"]["delivered"] += 7
            status["info"]["reconciliation"]["apps"]["received"] += 7
            return status

        liar = FakePart(claimed)
        result = shown(parts | {"collector": liar.url})
        liar.close()
        assert result.exit_code == 1, result.output
        off = [row for row in json.loads(result.stdout)["rows"] if row["state"] == "off"]
        assert [(row["stage"], row["part"], row["difference"]) for row in off] == [
            ("collectors → log", liar.url, 7)
        ]
        logd.daemon.kill()
        result = shown(parts)
        assert result.exit_code == 69, result.output
        silent = [row for row in json.loads(result.stdout)["rows"] if row["stage"] == "part"]
        assert [row["part"] for row in silent] == [parts["logd"]]


@pytest.mark.parametrize("checkpoint_interval_s", [0.2, 60])
def test_records_that_a_killed_collector_reads_again_are_not_missing(
    tmp_path: Path, nats_url: str, checkpoint_interval_s: float
) -> None:
    """A transform holds the lines of a file, which are delivered beside it.

    logd counts what it has stored since its own start, which is before the collector's. What no
    checkpoint has is sent again, and logd says that it is a duplicate.
    """
    path = tmp_path / "app.log"
    path.write_text("".join(f"line {number}\n" for number in range(PER_BATCH)))
    sources = [{"type": "file", "name": "files", "include": [str(path)], "service": "app"}]
    every = {"key": "resource.service.name", "merge": {"body": "concat"}, "window_s": 600}
    options: dict[str, Any] = {
        "transforms": {"joined": {"type": "reduce", "inputs": ["files"], **every}},
        "output": {"inputs": ["files", "joined"]},
        "checkpoint_interval_s": checkpoint_interval_s,
    }
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(tmp_path / "c", nats_url, sources, **options) as collector,
    ):
        parts = {
            "collector": f"http://{collector.config['admin']}",
            "logd": f"http://{logd.config['admin']}",
        }

        def is_noted() -> bool:
            """Whether the checkpoint has what is done."""
            queues = collector.daemon.status()["info"]["queues"].values()
            noted = Checkpoint(collector.data_dir / "checkpoint").load() or {}
            done = [queue["done"] for queue in queues]
            return done == [sequence for *_, sequence in noted.get("lanes", ())]

        wait_until(lambda: collector.account("files").get("delivered") == PER_BATCH, what="all")
        if checkpoint_interval_s < 1:
            wait_until(is_noted, what="a checkpoint")
        collector.daemon.kill()
        logd.restart()
        collector.daemon.start()
        wait_until(lambda: collector.account("files").get("repeated") == PER_BATCH, what="again")
        assert collector.account("files")["delivered"] == PER_BATCH
        assert len(logd.values("logs")) == PER_BATCH
        found = account(parts)["collectors → log"]
        assert (found.state, found.came) == (State.BALANCED, {"delivered": 0}), found
