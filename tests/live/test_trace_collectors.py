"""Records that never reached the log: `penstock trace` asks real collectors for them."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.deploy.cli import cli
from penstock.deploy.trace.report import edge_text
from penstock.service import ExitCode
from tests.support.collector import Collector, UnixSender
from tests.support.logd import Logd
from tests.support.router import FIRST_TIME_NS
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

STREAMS = [{"name": "all", "subject": "telemetry.>"}]
TRANSFORMS: dict[str, Any] = {
    "thirds": {
        "type": "filter",
        "inputs": ["apps"],
        "where": 'kind == "span" || int(extract(body, "([0-9]+)")) % 3 > 0',
    },
    "tail": {
        "type": "tail_sample",
        "inputs": ["thirds"],
        "wait_s": 0.2,
        "rules": [{"where": 'status_code == "ERROR"'}],
    },
}
KEPT, DROPPED = f"{1:032x}", f"{2:032x}"


def record(kind: str, **fields: Any) -> bytes:
    about = {"schema": f"{kind}/1.0", "kind": kind, "time_unix_nano": FIRST_TIME_NS,
             "resource": {"service.name": "checkout"}}  # fmt: skip
    return json.dumps(about | fields).encode()


def record_id(number: int) -> str:
    return f"{number:032x}"


def log(number: int) -> bytes:
    return record("log", severity_number=9, body=f"order {number}", record_id=record_id(number))


def span(trace: str, status: str) -> bytes:
    times = {"end_time_unix_nano": FIRST_TIME_NS + 5}
    return record("span", trace_id=trace, span_id=trace[16:], name="GET /", status_code=status,
                  **times)  # fmt: skip


def batch(_number: int) -> list[bytes]:
    """Logs of which every third is dropped, two traces of which one is kept, and no record."""
    odd = record("other", record_id=record_id(99))
    return [*map(log, range(6)), span(KEPT, "ERROR"), span(DROPPED, "OK"), odd]


def asked(logd: Logd, collector: Collector, *arguments: str) -> tuple[int, dict[str, Any]]:
    admin = f"http://{collector.config['admin']}"
    base = ["trace", "--server", logd.fetch, "--url", admin, "--json"]
    done = CliRunner().invoke(cli, [*base, *arguments])
    assert done.exit_code in (0, 1, 69), done.output
    return done.exit_code, json.loads(done.stdout)


def test_collectors_say_what_became_of_records_that_are_in_no_stream(
    tmp_path: Path, nats_url: str
) -> None:
    path = tmp_path / "c.sock"
    sources = [{"type": "unix", "name": "apps", "path": str(path)}]
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(tmp_path / "c", nats_url, sources, transforms=TRANSFORMS) as collector,
    ):
        with UnixSender(path, "s", batch, window=1) as sender:
            wait_until(lambda: sender.acked >= 1, what="an ack")
            sender.stop()

        def edges(*arguments: str) -> list[str]:
            code, answer = asked(logd, collector, *arguments)
            assert (code, answer["records"], answer["not_asked"]) == (ExitCode.FAILURE, [], {})
            return [edge_text(it) for it in answer["edges"]]

        def is_decided() -> bool:
            return bool(asked(logd, collector, "--trace-id", DROPPED)[1]["edges"])

        wait_until(is_decided, what="the decision on a trace")
        wait_until(collector.is_idle, what="idle")
        assert edges("--record-id", record_id(3))[0].endswith(
            "source apps, checkout: filtered by thirds: order 3"
        )
        assert edges("--trace-id", DROPPED)[0].endswith("sampled by tail: GET /")
        assert "in quarantine: " in edges("--record-id", record_id(99))[0]
        assert edges("--record-id", record_id(77)) == []

        _, answer = asked(logd, collector, "--record-id", record_id(1))
        assert answer["records"]
        assert {it["origin"]["source"] for it in answer["records"]} == {"apps"}
        assert answer["edges"] == []
        _, answer = asked(logd, collector, "--trace-id", KEPT)
        assert answer["records"]
        assert answer["edges"] == [], "what tail_sample held and kept was not dropped"

        collector.daemon.kill()
        code, answer = asked(logd, collector, "--record-id", record_id(3))
        assert (code, list(answer["not_asked"])) == (
            ExitCode.UNAVAILABLE,
            [f"http://{collector.config['admin']}"],
        )
