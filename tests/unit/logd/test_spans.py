"""What logd traces of its own work, and what it must not."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import SpanKind

from penstock.logd.api.middleware import TracedApi
from penstock.logd.api.operations import Document
from penstock.logd.api.server import Response, ResponseSlot
from penstock.logd.errors import RefusedError, UnavailableError
from penstock.logd.format.batch import Record, build_batch, encode_body
from penstock.logd.format.envelope import BatchPayload, encode_batch
from penstock.logd.intake.turn import Append, Message, MessageRun
from penstock.logd.metadata.streams import Stream, StreamConfig
from penstock.logd.partition.partition import Partition
from penstock.logd.partition.publish_queue import OPEN_MAX, AppendSpans, append_spans
from penstock.logd.security.principal import ANONYMOUS
from penstock.service.tracing import OWN_SUBJECTS, span_of, trace_of
from penstock.service.tracing.spans import Tracer
from tests.support.fetch_desk import LetsIn
from tests.support.lone_replica import open_partition
from tests.support.partition_context import make_context
from tests.support.tracing import attributes_of, ended, error_of, make_tracer

PRODUCER = b"p" * 16
OWN = OWN_SUBJECTS[0].encode()


async def opened(directory: Path, tracer: Tracer, name: str = "traces") -> Partition:
    stream = Stream(config=StreamConfig(name=name, subject="telemetry.>"), incarnation="1")
    return await open_partition(stream, directory, make_context(tracer=tracer))


async def closed(partition: Partition) -> None:
    partition.close()
    await asyncio.to_thread(partition.finish)


def batch(subject: str, sequence: int) -> Message:
    payload = BatchPayload(
        schema_version=1,
        record_count=1,
        producer_id=PRODUCER,
        previous_sequence=sequence - 1,
        sequence=sequence,
        body=encode_body(build_batch([Record(subject, b"x", 1)])),
    )
    return Message(subject.encode(), b"r", b"", encode_batch(payload))


async def test_what_a_turn_brings_is_a_span_until_it_is_committed(tmp_path: Path) -> None:
    tracer = make_tracer()
    partition = await opened(tmp_path, tracer)
    partition.take([batch("telemetry.logs.shop", 1), batch("telemetry.logs.shop", 2)])
    assert ended(tracer) == []
    await partition.wait_drained()
    (span,) = ended(tracer)
    assert (span.name, span.kind, error_of(span)) == ("append", SpanKind.CONSUMER, "")
    attributes = attributes_of(span)
    assert attributes["penstock.stream"] == "traces"
    assert (attributes["penstock.messages"], attributes["penstock.offset"]) == (2, 1)
    traces = [trace_of(PRODUCER, sequence) for sequence in (1, 2)]
    linked = [(link.context.trace_id, link.context.span_id) for link in span.links]
    assert linked == [(trace, span_of(trace)) for trace in traces]
    await closed(partition)


async def test_a_turn_of_nothing_but_own_spans_makes_none(tmp_path: Path) -> None:
    tracer = make_tracer()
    partition = await opened(tmp_path, tracer)
    partition.take([Message(OWN, b"", b"", b"span"), batch(OWN.decode(), 1)])
    await partition.wait_drained()
    assert ended(tracer) == []
    partition.take([Message(OWN, b"", b"", b"span"), Message(b"telemetry.a", b"", b"", b"x")])
    await partition.wait_drained()
    assert len(ended(tracer)) == 1
    await closed(partition)


async def test_logds_own_streams_make_none(tmp_path: Path) -> None:
    """Cursors are committed because something was read: of own spans, too."""
    assert append_spans(make_tracer(), "__cursors") is None
    assert append_spans(None, "logs") is None


async def test_what_is_refused_or_given_up_says_so(tmp_path: Path) -> None:
    tracer = make_tracer()
    partition = await opened(tmp_path, tracer)
    partition.take([batch("telemetry.logs.shop", 7)])  # a gap
    (span,) = ended(tracer)
    assert "nothing was stored" in error_of(span)
    partition.take([batch("telemetry.logs.shop", 1)])
    partition.follow()
    assert [error_of(span) for span in ended(tracer)] == ["not committed under this leadership"]
    await closed(partition)


def test_so_many_spans_are_open_at_a_time() -> None:
    tracer = make_tracer()
    spans = AppendSpans(tracer, "logs")
    message = Message(b"telemetry.a", b"", b"", b"x")
    for number in range(OPEN_MAX):
        span = spans.begin([message])
        assert span is not None
        spans.took(span, [Append([MessageRun(number, 1, [message])], 1)], 1)
    assert spans.begin([message]) is None
    spans.given_up()
    assert spans.begin([message]) is not None


async def test_an_election_is_told_with_the_time_that_nobody_led(tmp_path: Path) -> None:
    tracer = make_tracer(sample=0)  # rare and of interest: whatever the sample
    partition = await opened(tmp_path, tracer)
    partition.lead(3, 0, away_ns=5_000_000)
    (span,) = ended(tracer)
    assert (span.name, attributes_of(span)["penstock.epoch"]) == ("election", 3)
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time - span.start_time >= 5_000_000
    await closed(partition)


class Answering(LetsIn):
    """Answers what a test sets; raises it if it is an error."""

    def __init__(self, answer: Response | Exception) -> None:
        self.given = answer

    async def answer(self, request: Document, turn: ResponseSlot) -> Response:
        if isinstance(self.given, Exception):
            raise self.given
        return self.given


def match(subject: str) -> tuple[str, ...]:
    return ("traces", "all") if subject in OWN_SUBJECTS else ()


async def asked(answer: Response | Exception, **request: Any) -> list[tuple[str, str]]:
    tracer = make_tracer()
    api = TracedApi(Answering(answer), tracer, match)
    try:
        await api.answer(request, ResponseSlot(asyncio.Lock(), ANONYMOUS))
    except (RefusedError, UnavailableError):
        assert isinstance(answer, Exception)
    return [(span.name, error_of(span)) for span in ended(tracer)]


@pytest.mark.parametrize(
    ("request_", "answer", "expected"),
    [
        ({"api": "fetch", "stream": "logs"}, Response({}, payload=b"x"), [("fetch", "")]),
        ({"api": "fetch", "stream": "logs"}, Response({}), []),
        ({"api": "fetch", "stream": "traces"}, Response({}, payload=b"x"), []),
        ({"api": "fetch", "stream": "all"}, Response({}, payload=b"x"), []),
        ({"api": "fetch", "stream": "__cursors"}, Response({}, payload=b"x"), []),
        ({"api": "fetch", "stream": "logs", "replica": True}, Response({}, payload=b"x"), []),
        ({"api": "fetch", "stream": 7}, Response({}, payload=b"x"), []),
        ({"api": "streams"}, Response({}), []),
        ({"api": "purge", "stream": "logs"}, Response({}), [("stream.purge", "")]),
        (
            {"api": "fetch", "stream": "logs"},
            RefusedError("OUT_OF_RANGE", "no"),
            [("fetch", "OUT_OF_RANGE")],
        ),
        (
            {"api": "delete_stream", "stream": "traces"},
            UnavailableError("no"),
            [("stream.delete", "UNAVAILABLE")],
        ),
    ],
)
async def test_requests_are_told_if_they_bring_or_change_something(
    request_: Document, answer: Response | Exception, expected: list[tuple[str, str]]
) -> None:
    assert await asked(answer, **request_) == expected
