"""A lost file of what a stream remembers: it is told, counted, and told only once."""

from pathlib import Path
from urllib.request import urlopen

import pytest

from penstock.logd.publisher import BlockingPublisher
from tests.support.logd import Logd
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

LOGS = {
    "name": "logs",
    "subject": "t.>",
    "retention": {"messages": 8},
    "dedup_window_s": 3600,
    "dedup_entries_max": 100_000,
}


def told(logd: Logd) -> tuple[str, str, float]:
    """Health, reasons, and the gauge."""
    status = logd.daemon.status()
    with urlopen(f"http://{logd.daemon.admin}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    (gauge,) = (line.split()[1] for line in lines if line.startswith("penstock_logd_memory_lost{"))
    return status["health"], "; ".join(status["reasons"]), float(gauge)


def test_lost_ids_of_deleted_records_are_told_counted_and_told_once(
    tmp_path: Path, nats_url: str
) -> None:
    with Logd(tmp_path, nats_url, [LOGS], retention_interval_s=0.2) as logd:
        sent = 0
        with BlockingPublisher(nats_url) as publisher, logd.client() as log:

            def deleted() -> int:  # a segment goes when the ones after it hold enough
                nonlocal sent
                publisher.publish("t.a", b"%d" % sent)
                sent += 1
                return log.offsets("logs").start

            wait_until(deleted, what="records are deleted")
        logd.restart()
        assert told(logd) == ("ready", "", 0.0), "the file has what the log has not"
        assert logd.daemon.stop() == 0
        (remembered,) = (tmp_path / "data" / "streams").glob("logs-*/0/producers")
        remembered.unlink()
        logd.daemon.start()
        health, reasons, lost = told(logd)
        assert (health, lost) == ("degraded", 1.0)
        assert "repeats may be stored again" in reasons
        with logd.client() as log:
            assert log.offsets("logs").end == sent, "everything else is there"
        logd.restart()
        assert told(logd) == ("ready", "", 0.0)
