"""The OTLP sink with a real collector: Rotel takes what it sends, and hands on the same."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.router.sinks import make_sink
from penstock.router.sinks.registry import sink_kind
from tests.support.fake_otlp import FakeOtlp
from tests.support.fault_door import FaultDoor
from tests.support.rotel import Rotel
from tests.support.sink_batches import (
    batch,
    context,
    dead_letters,
    gauge_record,
    log_record,
    span_record,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

COUNT = 300


@pytest.fixture
def receiver() -> Iterator[FaultDoor]:
    made = FaultDoor(FakeOtlp())
    yield made
    made.close()


@pytest.fixture
def rotel(receiver: FaultDoor, tmp_path: Path) -> Iterator[Rotel]:
    made = Rotel(receiver.url, tmp_path)
    yield made
    made.close()


def records() -> list[dict[str, Any]]:
    makers = (log_record, span_record, gauge_record)
    made = [makers[number % 3](number) for number in range(COUNT)]
    made[0] |= {"severity_number": 17, "severity_text": "ERROR", "trace_id": "ab" * 16}
    made[3]["attributes"] = {"text": "☃\u0000\n", "int": -(2**62), "float": 0.1, "no": False}
    made[6]["body"] = {"nested": [1, {"deep": None}], "empty": ""}
    made[9]["resource"] = {}
    return made


def sent(url: str, directory: Path, **keys: Any) -> None:
    """Bring all records there; none may become a dead letter."""
    directory.mkdir()
    made = context(directory)
    settings = {"type": "otlp", "url": url, "timeout_s": 20, "batch": {"max_records": 40}, **keys}
    sink = make_sink(sink_kind("otlp").config.model_validate(settings), made)
    sink.open()
    sink.write(batch(records()))
    sink.close()
    assert dead_letters(made) == []
    assert made.meter.stage("x", received=COUNT, lag=0).sent == COUNT


def members(fake: Any) -> list[str]:
    """What was received, with resource and scope, in an order of its own."""
    return sorted(
        json.dumps([signal, member, of["resource"], of["scope"].get("scope")], sort_keys=True)
        for signal, received in fake.members.items()
        for member, of in ((it, it.pop("_of")) for it in map(dict, received))
    )


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_real_collector_takes_and_hands_on_what_the_sink_sends(
    rotel: Rotel, receiver: FaultDoor, tmp_path: Path, protocol: str, compression: str
) -> None:
    direct = FaultDoor(FakeOtlp())
    sent(direct.url, tmp_path / "direct")
    url = rotel.http if protocol == "http" else rotel.grpc
    sent(url, tmp_path / "rotel", protocol=protocol, compression=compression)
    wait_until(lambda: len(members(receiver.backend)) >= COUNT, what="all is handed on")
    assert members(receiver.backend) == members(direct.backend)
    direct.close()


def test_a_real_collector_refuses_what_is_no_otlp(rotel: Rotel) -> None:
    """As the fake does, which the other tests of faults are run with."""
    for signal in ("logs", "traces", "metrics"):
        for body, status in ((b"", 200), (b"\xff\xff\xff", 400)):
            asked = urllib.request.Request(
                f"{rotel.http}/v1/{signal}", body, {"Content-Type": "application/x-protobuf"}
            )
            try:
                with urllib.request.urlopen(asked, timeout=20) as answer:
                    found = answer.status
            except urllib.error.HTTPError as error:
                found = error.code
                error.close()
            assert found == status, (signal, body)
