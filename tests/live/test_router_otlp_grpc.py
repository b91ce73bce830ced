"""OTLP over gRPC: what its codes mean, and connections that break."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from penstock.router.sinks import make_sink
from penstock.router.sinks.registry import sink_kind
from tests.support.fake_otlp import FakeOtlp, serve_grpc
from tests.support.sink_batches import (
    NOW_NS,
    batch,
    context,
    dead_letters,
    gauge_record,
    log_record,
    span_record,
)
from tests.support.sink_cases import FAST
from tests.support.tcp_door import Break, TcpDoor

pytestmark = pytest.mark.live


@pytest.fixture
def receiver() -> Iterator[tuple[FakeOtlp, int]]:
    fake = FakeOtlp()
    server, port = serve_grpc(fake)
    yield fake, port
    server.stop(None).wait()


def over_grpc(port: int, directory: Path, **keys: Any) -> tuple[Any, Any]:
    made = context(directory)
    settings = {"type": "otlp", "protocol": "grpc", "url": f"http://127.0.0.1:{port}", **FAST}
    sink: Any = make_sink(sink_kind("otlp").config.model_validate({**settings, **keys}), made)
    sink.open()
    return sink, made


def aborts(
    code: grpc.StatusCode, *, retry_s: float | None = None, told: str = "as the test says"
) -> Callable[[Any], None]:
    def refuse(call: Any) -> None:
        if retry_s is not None:
            info = AnyMessage()
            info.Pack(error_details_pb2.RetryInfo(retry_delay=Duration(nanos=int(retry_s * 1e9))))
            status = status_pb2.Status(code=code.value[0], details=[info])
            call.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        call.abort(code, told)

    return refuse


def test_three_signals_arrive_over_grpc(receiver: tuple[FakeOtlp, int], tmp_path: Path) -> None:
    fake, port = receiver
    sink, _ = over_grpc(port, tmp_path, headers={"X-Honeycomb-Team": "hush"})
    records = [log_record(0), span_record(1), gauge_record(2), log_record(3)]
    sink.write(batch(records))
    sink.close()
    assert {name: len(found) for name, found in fake.members.items()} == {
        "logs": 2, "traces": 1, "metrics": 1,
    }  # fmt: skip


def test_a_header_of_a_file_is_read_again_for_each_call(
    receiver: tuple[FakeOtlp, int], tmp_path: Path
) -> None:
    fake, port = receiver
    key, seen = tmp_path / "key", []

    def look(call: Any) -> None:
        seen.append(dict(call.invocation_metadata())["x-honeycomb-team"])

    sink, _ = over_grpc(port, tmp_path, headers={"X-Honeycomb-Team": {"file": str(key)}})
    for number, text in enumerate(("one", "two")):
        key.write_text(f"{text}\n")
        fake.refuses.append(look)
        sink.write(batch([log_record(number)], first=number))
    sink.close()
    assert seen == ["one", "two"]


@pytest.mark.parametrize(
    "refusal",
    [
        aborts(grpc.StatusCode.UNAVAILABLE),
        aborts(grpc.StatusCode.ABORTED),
        aborts(grpc.StatusCode.UNAUTHENTICATED),
        aborts(grpc.StatusCode.INTERNAL),
        aborts(grpc.StatusCode.RESOURCE_EXHAUSTED, retry_s=0.01),
        aborts(grpc.StatusCode.RESOURCE_EXHAUSTED, told="RATE_LIMITED: ingestion rate limit"),
    ],
    ids=["unavailable", "aborted", "unauthenticated", "internal", "exhausted", "rate"],
)
def test_what_grpc_says_may_pass_is_tried_again(
    receiver: tuple[FakeOtlp, int], tmp_path: Path, refusal: Callable[[Any], None]
) -> None:
    fake, port = receiver
    fake.refuses += [refusal, refusal]
    sink, made = over_grpc(port, tmp_path)
    sink.write(batch([log_record(number) for number in range(4)]))
    sink.close()
    assert len(fake.members["logs"]) == 4
    assert dead_letters(made) == []


def test_a_backend_that_drains_is_left_over_grpc_too(
    receiver: tuple[FakeOtlp, int], tmp_path: Path
) -> None:
    """gRPC keeps a connection over which UNAVAILABLE comes: it is the server's answer."""
    fake, port = receiver
    met: list[str] = []

    def drains(call: Any) -> None:
        met.append(call.peer())
        if call.peer() == met[0]:
            call.abort(grpc.StatusCode.UNAVAILABLE, "draining")

    fake.refuses += [drains] * 8
    sink, made = over_grpc(port, tmp_path)
    sink.write(batch([log_record(number) for number in range(4)]))
    sink.close()
    assert len(fake.members["logs"]) == 4
    assert len(met) == len(set(met)) == 2
    assert dead_letters(made) == []


def test_what_grpc_refuses_is_bisected(receiver: tuple[FakeOtlp, int], tmp_path: Path) -> None:
    fake, port = receiver
    fake.refuses += [aborts(grpc.StatusCode.INVALID_ARGUMENT)] * 3  # four records, two, one
    sink, made = over_grpc(port, tmp_path)
    sink.write(batch([log_record(number) for number in range(4)]))
    sink.close()
    assert [dead_letter["code"] for dead_letter in dead_letters(made)] == ["grpc_invalid_argument"]
    assert len(fake.members["logs"]) == 3


def test_exhausted_by_a_message_that_is_too_large_is_halved(
    receiver: tuple[FakeOtlp, int], tmp_path: Path
) -> None:
    fake, port = receiver
    told = "grpc: received message larger than max (5 vs. 4)"
    fake.refuses.append(aborts(grpc.StatusCode.RESOURCE_EXHAUSTED, told=told))
    sink, made = over_grpc(port, tmp_path)
    sink.write(batch([log_record(number) for number in range(4)]))
    sink.close()
    assert len(fake.members["logs"]) == 4
    assert fake.exports == 2
    assert dead_letters(made) == []


def test_what_a_partial_success_rejects_is_laid_aside_with_its_request(
    receiver: tuple[FakeOtlp, int], tmp_path: Path
) -> None:
    fake, port = receiver
    sink, made = over_grpc(port, tmp_path, batch={"max_records": 2})
    poison = log_record(2, body="order 2 POISON")
    sink.write(batch([log_record(0), log_record(1), poison, log_record(3)]))
    sink.close()
    assert len(fake.members["logs"]) == 3
    assert [(it["offset"], it["code"]) for it in dead_letters(made)] == [
        (2, "partial_success"), (3, "partial_success"),
    ]  # fmt: skip


@pytest.fixture
def broken_way(receiver: tuple[FakeOtlp, int]) -> Iterator[TcpDoor]:
    """To the receiver; its mark is in each request's body, which is not compressed."""
    made = TcpDoor(receiver[1], b"checkout")
    yield made
    made.close()


@pytest.mark.parametrize("how", list(Break))
@pytest.mark.parametrize("record", [log_record, span_record, gauge_record])
def test_a_grpc_connection_that_breaks_costs_no_record(
    receiver: tuple[FakeOtlp, int], broken_way: TcpDoor, tmp_path: Path, how: Break, record: Any
) -> None:
    limit_s = 2 if how is Break.HANG else 10
    sink, made = over_grpc(broken_way.port, tmp_path, compression="none", timeout_s=limit_s)
    broken_way.faults += [how]
    sink.write(batch([record(number) for number in range(4)]))
    sink.close()
    signal = {"log": "logs", "span": "traces", "metric": "metrics"}[record(0)["kind"]]
    found = len(receiver[0].members[signal])
    assert broken_way.marks >= 2
    assert found == 4 or (found == 8 and how is not Break.RESET)
    assert dead_letters(made) == []
    assert made.meter.stage("x", received=4, lag=0).sent == 4


def test_a_record_that_kills_a_grpc_receiver_each_time_is_found_and_blocks_no_other(
    receiver: tuple[FakeOtlp, int], tmp_path: Path
) -> None:
    way = TcpDoor(receiver[1], b"KILLER")
    way.faults += [Break.RESET] * 200
    sink, made = over_grpc(way.port, tmp_path, compression="none", batch={"max_records": 16})
    records = [log_record(number) for number in range(32)]
    records[5] = log_record(5, body="order 5 KILLER")
    try:
        sink.write(batch(records))
    finally:
        sink.close()
        way.close()
    assert [(it["offset"], it["code"]) for it in dead_letters(made)] == [(5, "grpc_unavailable")]
    found = [it["body"]["stringValue"].split()[1] for it in receiver[0].members["logs"]]
    assert sorted(map(int, found)) == [number for number in range(32) if number != 5]


def test_an_outage_that_breaks_each_grpc_connection_convicts_no_record(
    receiver: tuple[FakeOtlp, int], broken_way: TcpDoor, tmp_path: Path
) -> None:
    broken_way.faults += [Break.RESET] * 40
    sink, made = over_grpc(broken_way.port, tmp_path, compression="none", batch={"max_records": 2})
    sink.write(batch([log_record(number) for number in range(8)]))
    sink.close()
    assert not broken_way.faults
    assert dead_letters(made) == []
    assert len(receiver[0].members["logs"]) == 8


def test_a_batch_that_comes_again_over_grpc_is_there_again(
    receiver: tuple[FakeOtlp, int], tmp_path: Path
) -> None:
    """With a time of the future in it, which OTLP has no rule for."""
    sink, made = over_grpc(receiver[1], tmp_path)
    rows = batch([log_record(0), log_record(1, time_ns=NOW_NS + 7200 * 10**9)])
    sink.write(rows)
    sink.write(rows)
    sink.close()
    logs = receiver[0].members["logs"]
    assert Counter(it["body"]["stringValue"].split()[1] for it in logs) == {"0": 2, "1": 2}
    assert logs[:2] == logs[2:]
    assert dead_letters(made) == []
