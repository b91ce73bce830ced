"""Two appliances on one host, each with ports of its own, which it has again after a restart."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from penstock.deploy.checks import Verdict, check_port
from penstock.deploy.up.topology import PORTS_RESERVED
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

PENSTOCK = Path(sys.executable).parent / "penstock"


def test_two_appliances_run_beside_one_another_and_keep_their_ports(tmp_path: Path) -> None:
    first, second = free_ranges()
    ports = {"one": first, "two": second}
    with ExitStack() as both:
        for name, port in ports.items():
            both.enter_context(appliance(tmp_path / name, "--ports-from", str(port)))
        for name, port in ports.items():
            found = status(tmp_path / name)["addresses"]
            assert found["console"] == f"http://127.0.0.1:{port + 2}/"
            assert found["fetch"] == f"127.0.0.1:{port + 10}"
            assert found["lake"] == str(tmp_path / name / "lake")
        send_span(status(tmp_path / "one")["addresses"]["otlp_http"])
        wait_until(lambda: received(tmp_path / "one") == 1, what="the span is in its log")
        assert received(tmp_path / "two") == 0, "the other has nothing of it"
    with appliance(tmp_path / "two"):
        assert status(tmp_path / "two")["addresses"]["nats"] == f"nats://127.0.0.1:{second}"


def free_ranges() -> list[int]:
    """The first port of two ranges, below those of outgoing connections, that nobody listens on."""
    return list(islice(filter(_is_free, range(20_000, 32_000, PORTS_RESERVED)), 2))


def _is_free(first: int) -> bool:
    addresses = (f"127.0.0.1:{port}" for port in range(first, first + PORTS_RESERVED))
    return all(check_port("port", address).verdict is Verdict.OK for address in addresses)


@contextmanager
def appliance(directory: Path, *arguments: str) -> Iterator[None]:
    run("up", "--detach", "--dir", str(directory), *arguments)
    try:
        yield
    finally:
        run("down", "--dir", str(directory))


def run(*arguments: str) -> str:
    done = subprocess.run([PENSTOCK, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def status(directory: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(run("status", "--dir", str(directory), "--json"))
    return document


def received(directory: Path) -> int:
    stages = status(directory)["logd"]["stages"]
    return next(int(one["received"]) for one in stages if one["name"] == "stream/traces")


def send_span(url: str) -> None:
    span = {
        "traceId": "5b8efff798038103d269b633813fc60c",
        "spanId": "eee19b7ec3c1b174",
        "name": "checkout",
        "startTimeUnixNano": "1700000000000000000",
        "endTimeUnixNano": "1700000000500000000",
    }
    body = {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
    request = urllib.request.Request(
        f"{url}/v1/traces",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200
