"""What streams answer to the NATS sink, and what it makes of a record."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.logd.format.acks import Nack
from penstock.router.delivery.breaker import Breaker
from penstock.router.delivery.core import (
    Answered,
    Delivered,
    Delivery,
    Policy,
    Refused,
    Send,
    Ticked,
)
from penstock.router.delivery.result import Failed, Fault, PartialFailure, Success
from penstock.router.sinks import make_sink
from penstock.router.sinks.http.settings import RequestRetry
from penstock.router.sinks.nats.client import Connection
from penstock.router.sinks.nats.sink import (
    Fate,
    Message,
    NatsSink,
    NatsSubject,
    Outcome,
    classify_outcomes,
    read_answer,
)
from tests.support.scripted_nats import Published, ScriptedNats
from tests.support.sink_batches import batch, context, dead_letters, log_record

STORED = Outcome(Fate.STORED)
SILENT = Outcome(Fate.UNKNOWN, Fault("no_answer", "no answer"))
SEALED = Outcome(Fate.UNKNOWN, Fault("nats_10109", "sealed"))
FULL = Outcome(Fate.LATER, Fault("nats_20005", "full"))
LARGE = Outcome(Fate.NEVER, Fault("nats_10054", "too large"))


def subject(directory: Path, **keys: Any) -> NatsSubject:
    settings = {"type": "nats", "subject": "out.{kind}.{service}", **keys}
    made = make_sink(NatsSink.model_validate(settings), context(directory))
    assert isinstance(made, NatsSubject)
    return made


def refusal(code: int, number: int) -> bytes:
    error = {"code": code, "err_code": number, "description": "as the test says"}
    return json.dumps({"stream": "logs", "error": error}).encode()


@pytest.mark.parametrize(
    ("data", "fate"),
    [
        (b'{"stream":"logs","seq":8}', Fate.STORED),
        (b'{"stream":"logs","seq":8,"duplicate":true}', Fate.STORED),
        (refusal(400, 10054), Fate.NEVER),
        (refusal(400, 20004), Fate.NEVER),
        (refusal(400, 10109), Fate.UNKNOWN),  # the stream is sealed: no message is to blame
        (refusal(400, 10060), Fate.LATER),  # another stream than the settings say
        (refusal(404, 10059), Fate.LATER),
        (refusal(429, 10167), Fate.LATER),
        (refusal(503, 10077), Fate.LATER),
        (refusal(500, 10000), Fate.UNKNOWN),
        (b"+OK", Fate.UNKNOWN),
        (b"{}", Fate.UNKNOWN),
        (b"[]", Fate.UNKNOWN),
        (b'{"error":{"code":"x"}}', Fate.UNKNOWN),
    ],
)
def test_an_answer_says_what_became_of_its_message(data: bytes, fate: Fate) -> None:
    assert read_answer(data).fate is fate


def test_a_duplicate_is_told() -> None:
    assert read_answer(b'{"stream":"logs","seq":8,"duplicate":true}').duplicate
    assert not read_answer(b'{"stream":"logs","seq":8}').duplicate


@pytest.mark.parametrize("nack", [nack for nack in Nack if nack.retryable])
def test_what_logd_may_store_later_is_no_records_fault(nack: Nack) -> None:
    assert read_answer(refusal(nack.code, nack.err_code)).fate is Fate.LATER


def test_a_request_of_which_everything_is_stored_is_taken() -> None:
    assert classify_outcomes([STORED, STORED], "") == Success()


def test_each_message_has_its_own_fate() -> None:
    verdict = classify_outcomes([LARGE, STORED, FULL, SEALED], "")
    assert verdict == PartialFailure(
        ((0, LARGE.fault),), ((3, SEALED.fault),), (2,), "full; sealed"
    )


def test_messages_that_a_slow_stream_has_not_answered_in_time_are_never_given_up() -> None:
    delivery = Delivery(
        [40], policy=Policy(), breaker=Breaker(RequestRetry().limits(), random.Random(1))
    )
    effects, stored = delivery.handle(Ticked(), 0), 0
    for _ in range(100):
        if delivery.done:
            break
        match effects[-1]:
            case Send(part, _):
                outcomes = [STORED, STORED, STORED, *[SILENT] * len(part.records)]
                said = classify_outcomes(
                    outcomes[: len(part.records)], "NATS: no answer within 10 s"
                )
                effects = delivery.handle(Answered(said), 0)
            case _:
                effects = delivery.handle(Ticked(), delivery.next_deadline_ns() or 0)
        stored += sum(len(it.part.records) for it in effects if isinstance(it, Delivered))
        assert not [it for it in effects if isinstance(it, Refused)]
    assert stored == 40


def test_what_the_server_denies_is_not_stored_where_nobody_acknowledges() -> None:
    with ScriptedNats(denied=["out"]) as server:
        settings = {"type": "nats", "subject": "out", "acknowledge": False, "servers": server.url}
        connection = Connection(NatsSink.model_validate(settings), "job/sink")
        try:
            connection.open()
            outcomes, problem = connection.exchange([Message("out", b"1", {})] * 2)
        finally:
            connection.close()
    verdict = classify_outcomes(outcomes, problem)
    assert isinstance(verdict, PartialFailure)
    assert (verdict.refused, verdict.failed, verdict.again) == ((), (), (0, 1))


def test_silence_after_a_whole_request_is_a_failure_that_nobody_answered() -> None:
    verdict = classify_outcomes([SILENT, SILENT], "NATS: the connection was lost")
    assert isinstance(verdict, Failed)
    assert not verdict.answered
    assert "the connection was lost" in verdict.fault.reason


def test_a_denied_subject_is_waited_for() -> None:
    """The server says so beside the answers; the message is not to blame."""
    said = 'nats: permissions violation for publish to "out.log"'
    verdict = classify_outcomes([STORED, SILENT], said)
    assert isinstance(verdict, PartialFailure)
    assert (verdict.failed, verdict.again) == ((), (1,))
    assert said in verdict.reason


@pytest.mark.parametrize(
    ("service", "token"), [("checkout", "checkout"), ("a.b *>", "a_b_"), ("", "-"), (None, "-")]
)
def test_a_service_is_one_token_of_the_subject(
    tmp_path: Path, service: str | None, token: str
) -> None:
    rows = batch([log_record(0, resource={"service.name": service})])
    (shown,) = subject(tmp_path).preview(rows)
    assert shown.target == f"PUB out.log.{token} at nats://127.0.0.1:4222"


def published(directory: Path, rows: pa.Table, **keys: Any) -> tuple[Published, Counter[str]]:
    """The message that a server gets of a row, and what the sink counts."""
    with ScriptedNats() as server:
        sink = subject(directory, servers=server.url, **keys)
        sink.open()
        try:
            sink.write(rows)
        finally:
            sink.close()
    (message,) = server.published
    return message, sink.context.meter.counted()


def test_a_message_is_the_record_with_its_place_as_its_id(tmp_path: Path) -> None:
    rows = batch([b"\xff"], first=7, key=b"k 1")
    message, _ = published(tmp_path, rows, subject="mirror.{subject}", stream="mirror")
    assert message.subject == "mirror.telemetry.logs.checkout"
    assert message.payload == b"\xff"
    assert message.headers == {
        "Nats-Msg-Id": "job/sink/logs.5f2c19aa/0/7",
        "Nats-Expected-Stream": "mirror",
        "Penstock-Key": "k 1",
    }


@pytest.mark.parametrize("wrong", ["GET /orders", "a\r\nPUB b 0", "", None])
def test_a_record_whose_subject_is_none_is_a_dead_letter(tmp_path: Path, wrong: str | None) -> None:
    """Another tool may have edited a dead letter, and a DataFrame has any text."""
    with ScriptedNats() as server:
        sink = subject(tmp_path, servers=server.url, subject="mirror.{subject}")
        sink.open()
        try:
            good = batch([b"good"], first=1)
            sink.write(pa.concat_tables([batch([b"bad"], subject=wrong), good]))
        finally:
            sink.close()
    assert [it.payload for it in server.published] == [b"good"]
    (dead_letter,) = dead_letters(sink.context)
    assert (dead_letter["offset"], dead_letter["code"]) == (0, "not_encodable")


def test_a_tombstone_is_one_again(tmp_path: Path) -> None:
    message, _ = published(tmp_path, batch([b""], key=b"k", value=None))
    assert message.payload == b""
    assert message.headers["Penstock-Tombstone"] == "true"


@pytest.mark.parametrize("key", [b"\xff", b" x", b"a\r\nEvil: 1", b"a\x00b"])
def test_a_key_that_no_header_can_hold_is_left_out_and_counted(tmp_path: Path, key: bytes) -> None:
    message, counted = published(tmp_path, batch([b"x"], key=key))
    assert message.headers == {"Nats-Msg-Id": "job/sink/logs.5f2c19aa/0/0"}
    assert counted["keys_left_out"] == 1


@pytest.mark.parametrize("name", ["a b", "a..b", "a.>", "*", ".a", "", "{who}", "a}"])
def test_a_subject_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="subject"):
        subject(tmp_path, subject=name)
