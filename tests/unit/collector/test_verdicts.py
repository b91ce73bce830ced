"""What was validated before it was spooled is not validated again, and becomes the same."""

import asyncio
import dataclasses
import math
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from penstock.base.clock import SystemClock
from penstock.collector.decode.otlp.messages import LOGS, Encoding
from penstock.collector.delivery.core import Delivery, Take
from penstock.collector.delivery.ordered_queue import Limits
from penstock.collector.delivery.pipeline import Pipeline
from penstock.collector.errors import SpoolFailedError
from penstock.collector.ledger import Ledger
from penstock.collector.sources.otlp.settings import OtlpSettings
from penstock.collector.sources.otlp.source import OtlpSource
from penstock.collector.spool import validation_cache
from penstock.collector.spool.journal import Journal
from penstock.collector.spool.memory_budget import Budget, Charge
from penstock.collector.spool.quarantine import Refusal
from penstock.collector.spool.spool import Spool, Unit
from penstock.collector.spool.validation_cache import ValidationCache
from penstock.collector.spool.writer import SpoolWriter
from penstock.collector.transforms.graph import graph
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Accepted
from tests.support.collector_graph import graph_of
from tests.unit.collector.test_otlp_logs import requests

HOST = {"host.name": "h"}


class Keeping:
    """A spool that keeps the last unit as it was put."""

    epoch = 0
    unit: Unit | None = None

    async def put(
        self, unit: Unit, *, epoch: int | None = None, wait: bool = True
    ) -> asyncio.Future[int]:
        del epoch, wait
        self.unit = unit
        future = asyncio.get_running_loop().create_future()
        future.set_result(0)
        return future


class Ends:
    """Where the pipeline's records go."""

    def __init__(self) -> None:
        self.found: list[Any] = []
        self.delivery = Delivery(Limits(), jitter=lambda: 0)

    def handle(self, event: Take) -> None:
        batch = event.records
        self.found.append((event.queue, batch.sequences, batch.timestamps, batch.lines, batch.size))

    async def wait_for_room(self, *, urgent: bool = False) -> None:
        """There is room."""

    async def put(self, refusals: list[Refusal]) -> int:
        self.found += refusals
        return 0


def received(body: bytes, encoding: Encoding = Encoding.PROTOBUF) -> Unit | None:
    """The unit that a request becomes."""
    spool = Keeping()
    share = Budget(bytes_max=1 << 30, share_bytes_max=1 << 30).share("app")
    spool_writer = SpoolWriter(
        "app", spool=spool, ledger=Ledger(), clock=SystemClock(), share=share
    )
    source = OtlpSource(
        OtlpSettings(type="otlp", grpc="127.0.0.1:0"), HOST, spool_writer=spool_writer
    )
    asyncio.run(source.take(LOGS, body, encoding, Charge(share), math.inf))
    return spool.unit


def ends_of(unit: Unit) -> list[Any]:
    ends = Ends()
    pipeline = Pipeline(
        cast("Any", ends), cast("Any", ends), Ledger(),
        graph=graph_of({}), resource=HOST, clock=SystemClock(),
    )  # fmt: skip
    asyncio.run(pipeline.take_unit("spool", 7, unit))
    assert pipeline.taking == {"spool": 0}
    return ends.found


@settings(max_examples=100, deadline=None)
@given(request=requests())
def test_known_verdicts_change_nothing(request: ExportLogsServiceRequest) -> None:
    unit = received(request.SerializeToString())
    if unit is not None:
        assert ends_of(unit) == ends_of(dataclasses.replace(unit, verdicts=()))


def test_a_line_is_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the validator refused, or what is no record, is validated where it was before."""
    body = (
        b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"timeUnixNano":"soon"},'
        b'{"timeUnixNano":"5","body":{"stringValue":"x"}},{"timeUnixNano":"-5"}]}]}]}'
    )
    unit = received(body, Encoding.JSON)
    assert unit is not None
    validated: list[bytes] = []

    def validate(line: bytes) -> Any:
        validated.append(line)
        return check_line(line)

    # How often a line is checked costs time and shows in nothing else.
    monkeypatch.setattr(graph, "check_line", validate)
    found = ends_of(unit)
    assert len(validated) == 1
    assert b"-5" in validated[0]
    assert len(found) == 3
    assert found == ends_of(dataclasses.replace(unit, verdicts=()))


ACCEPTED = [Accepted("log", "log/1.0", "app", 1, 0, exact=True, names=("a", "b"))]


async def test_verdicts_are_at_hand_as_soon_as_a_unit_can_be_read(tmp_path: Path) -> None:
    """A reader at work meets a unit before those who wait for it hear that it is durable."""
    journal = Journal(tmp_path, bytes_max=1 << 20)
    journal.open()
    spool = Spool(journal, Ledger(), when_full=lambda _: "block")
    for sequence in range(1, 3):
        await spool.put(Unit("app", "ndjson", b"{}", 1, 5, verdicts=ACCEPTED))
        await spool.put(Unit("app", "unix", b"{}", 1, 5, {}, "app", sequence, verdicts=ACCEPTED))
    await journal.commit()
    assert journal.durable_offset == 4
    assert [len(spool.verdicts.take(offset)) for offset in range(4)] == [1] * 4
    await journal.close()


def offer_at(offset: int) -> asyncio.Future[int]:
    """Of a unit that is durable."""
    offer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    offer.set_result(offset)
    return offer


async def test_verdicts_on_what_was_not_written_are_let_go() -> None:
    known = ValidationCache()
    failed, given_up, waiting = (asyncio.get_running_loop().create_future() for _ in range(3))
    failed.set_exception(SpoolFailedError("no disk"))
    given_up.cancel()
    for offer in (failed, given_up, offer_at(7), waiting):
        known.keep(offer, ACCEPTED)
    assert [len(known.take(offset)) for offset in (6, 7, 8)] == [0, 1, 0]
    assert known.records == 1
    waiting.set_result(8)
    assert len(known.take(8)) == 1


async def test_verdicts_are_taken_in_order_and_let_go_behind() -> None:
    known = ValidationCache()
    for offset in (1, 2, 4):
        known.keep(offer_at(offset), ACCEPTED * offset)
    assert [len(known.take(offset)) for offset in (0, 2, 3, 4, 1)] == [0, 2, 0, 4, 0]
    assert (known.records, known.size) == (0, 0)


async def test_beyond_the_bound_what_is_read_next_stays() -> None:
    known = ValidationCache(records_max=3)
    for offset in range(5):
        known.keep(offer_at(offset), ACCEPTED * 2)
    assert [len(known.take(offset)) for offset in range(5)] == [2, 0, 0, 0, 0]
    known.keep(offer_at(9), ACCEPTED)
    assert len(known.take(9)) == 1


async def test_names_that_are_the_same_object_count_once() -> None:
    """As those of a request's records of one shape are."""
    once, often = ValidationCache(), ValidationCache()
    once.keep(offer_at(0), ACCEPTED)
    often.keep(offer_at(0), [ACCEPTED[0]._replace(time_unix_nano=number) for number in range(100)])
    assert once.size == often.size > 0


async def test_what_is_kept_while_nothing_is_read_has_a_bound_in_bytes() -> None:
    """As while NATS is away, with as many and as long names as a record may have."""
    known = ValidationCache()
    for offset in range(100):
        names = tuple(f"{offset:03}.{number:03}".ljust(128, "x") for number in range(128))
        known.keep(
            offer_at(offset),
            [ACCEPTED[0]._replace(names=(*names[1:], "x" * 128)) for _ in range(100)],
        )
    assert 1_000 <= known.records < 2_000
    assert known.size <= validation_cache.BYTES_MAX
    assert len(known.take(0)) == 100
    for offset in range(100):
        known.take(offset)
    assert (known.records, known.size) == (0, 0)
