"""The examples that need only specs: run, and what they print is checked."""

import json
import subprocess
import sys
from typing import Any

import pytest

from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Accepted

pytestmark = pytest.mark.live


def run(*command: str) -> list[bytes]:
    done = subprocess.run([sys.executable, *command], capture_output=True, timeout=50, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.splitlines()


def parsed(lines: list[bytes]) -> list[dict[str, Any]]:
    verdicts = [check_line(line) for line in lines]
    assert all(isinstance(verdict, Accepted) for verdict in verdicts), verdicts
    return [json.loads(line) for line in lines]


def test_emit_a_log() -> None:
    placed, failed = parsed(run("examples/01_emit_a_log.py"))
    assert placed["context"] == {"user.id": "u-17", "request.id": "r-1"}
    assert failed["attributes"]["exception.type"] == "ValueError"


def test_emit_an_event() -> None:
    event, log = parsed(run("examples/02_emit_an_event.py"))
    assert event["schema"] == "shop.order_placed/1.0"
    assert log["body"] == "a negative total is refused"


def test_trace_with_opentelemetry() -> None:
    log, span, metric = parsed(run("examples/03_trace_with_opentelemetry.py"))
    assert log["trace_id"] == span["trace_id"]
    assert (metric["name"], metric["value"]) == ("jobs", 1)


def test_shop_is_the_same_for_the_same_seed() -> None:
    def placed(seed: str) -> list[str]:
        *lines, report = run(
            "examples/checkout_app.py", "--seconds", "1", "--rate", "500", "--seed", seed
        )
        assert json.loads(report)["dropped"] == {}
        records = parsed(lines)
        kinds = {record["kind"] for record in records}
        assert kinds >= {"log", "span", "metric", "event"}
        events = [record["attributes"] for record in records if record["kind"] == "event"]
        own = [{k: v for k, v in each.items() if k.startswith("shop.")} for each in events]
        return [json.dumps(attributes) for attributes in own]

    one, again, other = placed("1"), placed("1"), placed("2")
    fewest = min(len(one), len(again))  # how many a second has room for differs
    assert fewest > 1
    assert one[:fewest] == again[:fewest]
    assert one[:fewest] != other[:fewest]
