"""A collector whose records go elsewhere than before when they are read again."""

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock.logd.storage import Checkpoint
from tests.support.collector import Collector, UnixSender, bodies, log_line
from tests.support.logd import Logd
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

STREAMS = [{"name": "logs", "subject": "telemetry.logs.>"}]
PER_BATCH = 20
NUMBER = "int(extract(body, '([0-9]+)'))"
ROUTE = {
    "type": "route",
    "inputs": ["unix"],
    "routes": {"away": {"where": f"{NUMBER} % 5 == 0", "subject": "nobody.takes.{service}"}},
}


def numbered(batch: int) -> list[bytes]:
    first = (batch - 1) * PER_BATCH
    return [log_line(number) for number in range(first, first + PER_BATCH)]


def started(directory: Path, nats_url: str, **options: Any) -> Collector:
    sources = [{"type": "unix", "path": str(directory / "a.sock")}]
    options = {"drain_timeout_s": 0.3, "transforms": {"part": ROUTE}} | options
    return Collector(directory / "collector", nats_url, sources, **options)


def send_until_stuck(collector: Collector, sender: UnixSender) -> None:
    """Until much is in the log beyond records that nobody takes."""
    before = sender.acked
    wait_until(lambda: sender.acked >= before + 10, what="acks")
    wait_until(lambda: collector.account("unix").get("held", 0) >= 10, what="records are held")


def reload(collector: Collector) -> None:
    """For the first time since its start."""
    os.kill(collector.daemon.pid, signal.SIGHUP)
    wait_until(
        lambda: collector.daemon.status()["info"]["reloads"]["generation"] == 2, what="a reload"
    )


def is_all_but_a_fifth_delivered(collector: Collector) -> bool:
    account = collector.account("unix")
    return bool(account["recovered"] + account["received"] == 5 * account["held"])


def check(collector: Collector, logd: Logd, acked: int) -> Counter[str]:
    """Every acknowledged record is in the log; returns how often each is."""
    wait_until(collector.is_idle, what="idle")
    found = Counter(bodies(logd.values("logs")))
    missing = [n for n in range(acked * PER_BATCH) if not found[f"number {n}"]]
    assert missing == []
    return found


@pytest.mark.parametrize(
    "how", ["restart", "kill", "reload and kill", "kill and reload", "kill and reload at once"]
)
def test_what_was_routed_to_nobody_is_delivered_when_the_route_is_gone(
    tmp_path: Path, nats_url: str, how: str
) -> None:
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        started(tmp_path, nats_url) as collector,
    ):
        with UnixSender(tmp_path / "a.sock", "sender-1", numbered) as sender:
            send_until_stuck(collector, sender)
        wait_until(lambda: is_all_but_a_fifth_delivered(collector), what="the others delivered")
        if "kill and reload" in how:
            collector.daemon.kill()
            collector.daemon.start()
            wait_until(lambda: collector.account("unix").get("delivered"), what="it is read again")
        if how == "kill and reload":
            wait_until(lambda: is_all_but_a_fifth_delivered(collector), what="all is read again")
        collector.config["transforms"] = {}
        collector.daemon.write_config()
        if "reload" in how:
            reload(collector)
        if how == "restart":
            assert collector.daemon.stop() == 75, "somebody takes it"
            collector.daemon.start()
        elif "kill and reload" not in how:
            collector.daemon.kill()
            collector.daemon.start()
        found = check_or_route_back(collector, logd, sender.acked, how)
        # The last start begins again; a reload does, too, that comes while all is still read again.
        assert too_often(found, begun_anew=2 if "at once" in how else 1) == {}
        assert collector.daemon.stop() == 0


def too_often(found: Counter[str], begun_anew: int) -> dict[str, int]:
    """What came more than once for each beginning; all but a fifth came once before these."""
    return {
        body: times
        for body, times in found.items()
        if times > begun_anew + bool(int(body.removeprefix("number ")) % 5)
    }


def check_or_route_back(collector: Collector, logd: Logd, acked: int, how: str) -> Counter[str]:
    """What was read before a reload goes its way: a start reads it again without the route."""
    if "kill and reload" in how:
        assert collector.daemon.stop() == 75, "what was read before is routed to nobody"
        collector.daemon.start()
    return check(collector, logd, acked)


@pytest.mark.parametrize("how", ["restart", "reload and kill"])
def test_lines_that_were_routed_to_nobody_are_delivered_when_the_route_is_gone(
    tmp_path: Path, nats_url: str, how: str
) -> None:
    log_path = tmp_path / "app.log"
    log_path.write_text("".join(f"number {number}\n" for number in range(500)))
    file = {"type": "file", "include": [str(log_path)], "service": "shop", "poll_ms": 10}
    transforms = {"part": ROUTE | {"inputs": ["file"]}}
    options: dict[str, Any] = {"drain_timeout_s": 0.3, "transforms": transforms}
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(tmp_path / "collector", nats_url, [file], **options) as collector,
    ):
        wait_until(lambda: collector.account("file").get("delivered") == 400, what="the others")
        collector.config["transforms"] = {}
        collector.daemon.write_config()
        if how == "restart":
            assert collector.daemon.stop() == 75, "somebody takes it"
        else:
            reload(collector)
            collector.daemon.kill()
        collector.daemon.start()
        wait_until(lambda: len(set(bodies(logd.values("logs")))) == 500, what="every line")
        wait_until(collector.is_idle, what="idle")
        assert len(bodies(logd.values("logs"))) <= 900
        assert collector.daemon.stop() == 0


def test_a_route_that_comes_and_goes_through_kills_loses_nothing(
    tmp_path: Path, nats_url: str
) -> None:
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        started(tmp_path, nats_url) as collector,
    ):
        with UnixSender(tmp_path / "a.sock", "sender-1", numbered) as sender:
            for turn in range(6):
                before = sender.acked
                wait_until(lambda: sender.acked >= before + 5, what="acks")  # noqa: B023
                collector.config["transforms"] = {"part": ROUTE} if turn % 2 else {}
                collector.daemon.write_config()
                if turn % 3:
                    reload(collector)
                    after = sender.acked
                    wait_until(lambda: sender.acked > after, what="acks")  # noqa: B023
                collector.daemon.kill()
                collector.daemon.start()
            sender.stop()
        collector.config["transforms"] = {}
        collector.daemon.write_config()
        assert collector.daemon.stop() == 75, "somebody takes what is routed away"
        collector.daemon.start()
        check(collector, logd, sender.acked)
        before = len(logd.values("logs"))
        del collector.config["drain_timeout_s"]  # what is read again is delivered by the stop
        collector.restart(kill=True)
        assert collector.daemon.stop() == 0
        assert len(logd.values("logs")) == before, "by the same rules nothing comes twice"


def test_after_a_reload_that_changes_routing_a_kill_repeats_nothing_of_what_is_read_since(
    tmp_path: Path, nats_url: str
) -> None:
    """A transform holds lines that are delivered beside it, so a kill has them read again."""
    log_path = tmp_path / "app.log"
    lines = [f"line {number}" for number in range(200)]
    file = {"type": "file", "include": [str(log_path)], "service": "shop", "poll_ms": 10}
    held = {"key": "resource.service.name", "merge": {"body": "concat"}, "window_s": 600}
    options: dict[str, Any] = {
        "transforms": {"held": {"type": "reduce", "inputs": ["file"], **held}},
        "output": {"inputs": ["file", "held"]},
    }

    def checkpoint() -> dict[str, Any]:
        return Checkpoint(collector.data_dir / "checkpoint").load() or {}

    def delivered() -> list[str]:
        return [body for body in bodies(logd.values("logs")) if "\n" not in body]

    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(tmp_path / "collector", nats_url, [file], **options) as collector,
    ):
        log_path.write_text("".join(f"{line}\n" for line in lines[:100]))
        wait_until(lambda: len(delivered()) == 100, what="what comes before")
        collector.config["output"]["subject"] = "telemetry.logs.{service}.all"
        collector.daemon.write_config()
        reload(collector)
        wait_until(lambda: checkpoint().get("routing"), what="what was read before is done")
        with log_path.open("a") as appended:
            appended.write("".join(f"{line}\n" for line in lines[100:]))
        wait_until(lambda: len(delivered()) == 200, what="what comes since")
        collector.daemon.kill()
        size = len("".join(f"{line}\n" for line in lines[:100]))
        assert [one["position"] for one in checkpoint()["files"]] == [size]
        collector.daemon.start()
        wait_until(lambda: collector.account("file").get("repeated") == 100, what="read again")
        wait_until(collector.is_idle, what="idle")
        assert collector.daemon.stop() == 0
        assert delivered() == lines


def test_a_checkpoint_of_an_earlier_release_repeats_nothing_after_a_stop(
    tmp_path: Path, nats_url: str
) -> None:
    """It has no fingerprint; nothing that it had not delivered is read by others."""
    log_path = tmp_path / "app.log"
    log_path.write_text("".join(f"line {number}\n" for number in range(100)))
    file = {"type": "file", "include": [str(log_path)], "service": "app", "poll_ms": 10}
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        started(tmp_path, nats_url, transforms={}) as collector,
    ):
        collector.daemon.stop()
        collector.config["sources"].append(file)
        collector.daemon.write_config()
        collector.daemon.start()
        with UnixSender(tmp_path / "a.sock", "sender-1", numbered) as sender:
            wait_until(lambda: sender.acked >= 5, what="acks")
            sender.stop()
        wait_until(lambda: len(logd.values("logs")) >= 100 + sender.acked * PER_BATCH, what="all")
        assert collector.daemon.stop() == 0
        checkpoint = Checkpoint(collector.data_dir / "checkpoint")
        document = checkpoint.load() or {}
        for key in ("routing", "quarantine"):
            del document[key]
        checkpoint.save(document)
        before = len(logd.values("logs"))
        with log_path.open("a") as appended:
            appended.write("line 100\n")
        collector.daemon.start()
        wait_until(lambda: len(logd.values("logs")) > before, what="the next line")
        assert collector.daemon.stop() == 0
        found = Counter(bodies(logd.values("logs")))
        assert set(found.values()) == {1}
        assert found["line 100"] == 1
