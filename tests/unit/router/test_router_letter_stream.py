"""Copies of dead letters: what cannot be in the stream is counted and told, and nobody waits."""

import json
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from penstock.logd.errors import LogdError, RefusedError, UnavailableError
from penstock.logd.format.acks import Nack, PubAck
from penstock.logd.publisher import PublishRefusedError
from penstock.router.deadletters.replayable import find_dead_letters
from penstock.router.deadletters.stream import (
    CHUNK_RECORDS,
    PAUSE_S,
    NatsDeadLetterPublisher,
    publish_file,
)
from penstock.router.deadletters.writer import Reason, send_to_dlq
from penstock.router.job.config import DeadLetterStream
from penstock.router.sinks import SinkContext
from tests.unit.router.sink_rows import TestClock, context, row, table

LARGE = RefusedError("NATS_MAX_PAYLOAD", "NATS takes messages of at most 1048576 bytes")
AWAY = UnavailableError("nobody listens on 'letters'")
BUSY = PublishRefusedError(PubAck(stream="letters", nack=Nack.BUSY, description="busy"))


class Publisher:
    """Answers as it is told; a letter without an answer of its own is stored.

    Attributes:
        answers: Errors by offset.
        away: Raised where letters are submitted.
    """

    def __init__(self) -> None:
        self.answers: dict[int, LogdError] = {}
        self.away: LogdError | None = None
        self.submitted: list[int] = []
        self.ids: list[str] = []
        self.closed = False

    def submit(self, subject: str, line: bytes, *, message_id: str) -> Future[Any]:
        if self.away is not None:
            raise self.away
        assert subject == "letters"
        offset = json.loads(line)["offset"]
        self.submitted.append(offset)
        self.ids.append(message_id)
        future: Future[Any] = Future()
        if offset in self.answers:
            future.set_exception(self.answers[offset])
        else:
            future.set_result(None)
        return future

    def close(self, *, flush: bool) -> None:
        assert not flush
        self.closed = True


@pytest.fixture
def publisher() -> Publisher:
    return Publisher()


def stream_of(clock: TestClock, publisher: Any) -> NatsDeadLetterPublisher:
    """One that publishes by this, or by what a function connects to."""
    connect = publisher if callable(publisher) else lambda: publisher
    return NatsDeadLetterPublisher(DeadLetterStream(subject="letters"), clock, connect=connect)


def line(offset: int, **more: Any) -> bytes:
    return json.dumps({"job": "j", "sink": "s", "offset": offset, **more}).encode()


def lay(its: SinkContext, rows: pa.Table, code: str = "http_400") -> Path:
    (path,) = send_to_dlq(rows, Reason(code, "no"), its)
    return path


def detail(its: SinkContext) -> dict[str, int]:
    return dict(its.meter.stage("lake", received=0, lag=0).detail)


def test_a_letter_that_is_too_large_is_counted_and_the_batch_goes_on(
    tmp_path: Path, publisher: Publisher
) -> None:
    publisher.answers = {1: LARGE}
    stream = stream_of(TestClock(), publisher)
    its = replace(context(tmp_path), dead_letter_stream=stream)
    with capture_logs() as logs:
        path = lay(its, table([row(0), row(1), row(2)]))
        lay(its, table([row(1)]))
    assert len(path.read_bytes().splitlines()) == 3, "the file has each"
    assert detail(its) == {"dead_letters": 4, "dead_letters_not_streamed": 2}
    assert publisher.submitted == [0, 1, 2, 1], "nobody waits for a larger NATS"
    (told,) = logs
    assert (told["log_level"], told["dead_letters"], told["subject"]) == ("warning", 1, "letters")
    assert str(LARGE) in (told["reason"], stream.problem)
    lay(its, table([row(3)]))
    assert stream.problem is None


@pytest.mark.parametrize("error", [AWAY, BUSY])
def test_what_is_away_is_waited_for_once_a_minute(error: LogdError, publisher: Publisher) -> None:
    clock = TestClock()
    stream, chunk = stream_of(clock, publisher), CHUNK_RECORDS
    publisher.answers = dict.fromkeys(range(chunk), error)
    with capture_logs() as logs:
        assert stream.publish([line(number) for number in range(3 * chunk)]) == 3 * chunk
        assert len(publisher.submitted) == chunk, "the others would wait as long, one by one"
        clock.sleep(PAUSE_S - 1)
        assert stream.publish([line(-1)]) == 1
        publisher.answers = {}
        clock.sleep(1)
        assert stream.problem == str(error)
        assert stream.publish([line(-2)]) == 0
        assert publisher.submitted[chunk:] == [-2]
        publisher.answers = {-3: error}
        assert stream.publish([line(-3)]) == 1
    assert [it["dead_letters"] for it in logs] == [3 * chunk, 2]


def test_a_nats_that_cannot_be_reached_costs_a_copy_and_no_batch(
    tmp_path: Path, publisher: Publisher
) -> None:
    clock, tries = TestClock(), []

    def connect(*_: Any) -> Publisher:
        tries.append(clock.now_ns)
        if len(tries) == 1:
            raise AWAY
        return publisher

    stream = stream_of(clock, connect)
    its = replace(context(tmp_path), dead_letter_stream=stream)
    lay(its, table([row(0)]))
    lay(its, table([row(1)]))
    assert (len(tries), detail(its)["dead_letters_not_streamed"]) == (1, 2)
    clock.sleep(PAUSE_S)
    lay(its, table([row(2)]))
    lay(its, table([row(3)]))
    assert (len(tries), publisher.submitted) == (2, [2, 3])


def test_a_job_that_ends_gives_letters_to_nobody(publisher: Publisher) -> None:
    stream = stream_of(TestClock(), publisher)
    assert stream.publish([line(1)]) == 0
    stream.close()
    assert publisher.closed
    assert stream.publish([line(2)]) == 1
    publisher.away = UnavailableError("the publisher is closed")
    again = stream_of(TestClock(), publisher)
    assert again.publish([line(3), line(4)]) == 2


def test_what_is_not_latin_and_what_is_no_character_is_stored_as_short_as_can_be(
    tmp_path: Path, publisher: Publisher
) -> None:
    its = replace(context(tmp_path), dead_letter_stream=stream_of(TestClock(), publisher))
    value = "привет\u2028" * 100
    path = lay(its, table([row(0, value=value.encode())]), code="half \ud83d\r\n/")
    assert len(path.read_bytes()) < len(value.encode()) + 500
    (file,) = find_dead_letters(its.dead_letters)
    (dead_letter,) = file.dead_letters()
    assert (dead_letter["value"], dead_letter["code"]) == (value, "half \ud83d\r\n/")
    assert publisher.ids == ["job/lake/logs/5f2c19aa00000000/0/0/half%20%3F%0D%0A%2F"]
    assert publish_file(file, stream_of(TestClock(), publisher)) == (1, 0)
    assert publisher.submitted == [0, 0]
