"""Liftbridge's API of one logd: an unmodified client, and messages whose bytes are made by hand."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import nats
import pytest
from grpc import StatusCode

from penstock.logd.format.envelope import encode_envelope
from tests.support.liftbridge import (
    ALL,
    EARLIEST,
    LATEST,
    NEW_ONLY,
    NONE,
    OFFSET,
    STOP_LATEST,
    STOP_OFFSET,
    STOP_TIMESTAMP,
    TIMESTAMP,
    LiftbridgeCalls,
    run_python_liftbridge,
    values,
)
from tests.support.logd import Logd
from tests.support.nats_server import running_nats_server
from tests.support.processes import free_port
from tests.support.protobuf_bytes import decode, encode, entry, one
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

STREAMS: list[dict[str, Any]] = [
    {"name": "logs", "subject": "telemetry.logs"},
    {"name": "full", "subject": "full", "discard": "new", "retention": {"messages": 1}},
    {"name": "strict", "subject": "strict", "expected_offset": True},
    {"name": "wild", "subject": "wild.>"},
]
SUBSCRIPTIONS_MAX = 8


@pytest.fixture(scope="module")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_nats_server(tmp_path_factory.mktemp("nats")) as url:
        yield url


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, nats_url: str) -> Iterator[Logd]:
    listen = f"127.0.0.1:{free_port()}"
    section = {"listen": listen, "max_subscriptions": SUBSCRIPTIONS_MAX, "reflection": True}
    with Logd(tmp_path_factory.mktemp("logd"), nats_url, [], grpc=section) as logd:
        yield logd


@pytest.fixture
def logd(running: Logd) -> Iterator[Logd]:
    """One for all tests; each has streams of its own."""
    with running.client() as client:
        for settings in STREAMS:
            client.create_stream(**settings)
    yield running
    with running.client() as client:
        for stream in client.streams():
            client.delete_stream(stream.name)


@pytest.fixture
def calls(logd: Logd) -> Iterator[LiftbridgeCalls]:
    with LiftbridgeCalls(address(logd)) as opened:
        yield opened


def address(logd: Logd) -> str:
    return str(logd.config["grpc"]["listen"])


PROGRAM = """
lift.create_stream(Stream(subject="orders", name="orders"))
try:
    lift.create_stream(Stream(subject="orders", name="orders"))
except ErrStreamExists:
    print("exists")
for number in range(3):
    lift.publish(Message(value=f"{number}", stream="orders", key="k"))
ack = lift.publish(Message(value="3", stream="orders").ack_policy_all()).ack
print(ack.stream, ack.offset)
print(lift.publish_to_subject(Message(value="4", subject="orders")).ack.offset)
(broker,) = lift.fetch_metadata().brokers
print(f"{broker.host}:{broker.port}" == sys.argv[1])
for message in lift.subscribe(Stream(subject="orders", name="orders").start_at_offset(2)):
    print(message.offset, message.value.decode(), message.key.decode())
    if message.offset == 4:
        break
try:
    lift.publish(Message(value="x", stream="nowhere"))
except Exception as error:
    print(type(error).__name__)
"""


def test_python_liftbridge_works_as_it_is(logd: Logd) -> None:
    lines = run_python_liftbridge(PROGRAM, address(logd))
    # It gives the empty first message of a subscription to its user: "0  ".
    assert lines[:7] == ["exists", "orders 3", "4", "True", "0  ", "2 2 k", "3 3 "]
    assert lines[7] == "4 4 "
    assert lines[8:] == ["ErrNoSuchPartition"] or "Err" in lines[8]
    # It publishes with the policy NONE and without a deadline, and all of it is there.
    assert logd.values("orders") == [b"0", b"1", b"2", b"3", b"4"]


def test_a_record_comes_back_as_it_was_published(calls: LiftbridgeCalls) -> None:
    headers = [entry("bytes", bytes(range(256))), entry("none", b"")]
    ack = calls.publish("logs", b"value", {1: b"\x00key", 5: headers, 7: "c-1", 8: ALL})
    assert (one(ack, 1), one(ack, 2), one(ack, 3)) == (
        b"logs",
        b"telemetry.logs",
        b"telemetry.logs",
    )
    assert (one(ack, 4, 0), one(ack, 6), one(ack, 7), one(ack, 10, 0)) == (0, b"c-1", ALL, 0)
    assert one(ack, 9) >= one(ack, 8) > 10**18
    subscription = calls.subscribe("logs", {3: EARLIEST, 8: STOP_LATEST})
    assert subscription.stands
    (message,) = subscription.rest()
    assert (one(message, 1, 0), one(message, 2), one(message, 3)) == (0, b"\x00key", b"value")
    assert (one(message, 5), one(message, 6, 0), one(message, 7)) == (b"logs", 0, b"telemetry.logs")
    assert one(message, 4) == one(ack, 8)
    found = {one(decode(item), 1): one(decode(item), 2, b"") for item in message[9]}
    assert found == {
        b"bytes": bytes(range(256)),
        b"none": b"",
        b"subject": b"telemetry.logs",
        b"reply": b"",
    }


def test_every_position_begins_and_ends_where_it_should(calls: LiftbridgeCalls) -> None:
    times = [one(calls.publish("logs", b"%d" % number), 8) for number in range(6)]
    cases: list[tuple[dict[int, Any], bytes]] = [
        ({3: EARLIEST, 8: STOP_LATEST}, b"012345"),
        ({3: LATEST, 8: STOP_LATEST}, b"5"),
        ({3: OFFSET, 4: 2, 8: STOP_OFFSET, 9: 4}, b"234"),
        ({3: TIMESTAMP, 5: times[3], 8: STOP_LATEST}, b"345"),
        ({3: EARLIEST, 8: STOP_TIMESTAMP, 10: times[2]}, b"012"),
        ({3: LATEST, 12: True}, b"543210"),
        ({3: NEW_ONLY, 12: True, 8: STOP_OFFSET, 9: 4}, b"54"),
        ({3: OFFSET, 4: 3, 12: True, 8: STOP_OFFSET, 9: 1}, b"321"),
    ]
    for fields, expected in cases:
        subscription = calls.subscribe("logs", fields)
        assert subscription.stands, fields
        assert b"".join(values(subscription.rest())) == expected, fields
        assert subscription.code is StatusCode.RESOURCE_EXHAUSTED, fields
    waiting = calls.subscribe("logs", {3: NEW_ONLY})
    calls.publish("logs", b"new")
    assert values(waiting.take(1)) == [b"new"]
    waiting.cancel()


def test_a_start_outside_the_range_begins_where_liftbridge_does(
    logd: Logd, calls: LiftbridgeCalls
) -> None:
    for number in range(6):
        calls.publish("logs", b"%d" % number)
    with logd.client() as client:
        client.purge("logs", 2)
    for start in (-1, 0, 2):
        below = calls.subscribe("logs", {3: OFFSET, 4: start, 8: STOP_LATEST})
        assert values(below.rest()) == [b"2", b"3", b"4", b"5"], start
    assert values(calls.subscribe("logs", {3: OFFSET, 4: 99, 12: True}).rest()) == [
        b"5", b"4", b"3", b"2"
    ]  # fmt: skip
    beyond, empty = (
        calls.subscribe("logs", {3: OFFSET, 4: 99}),
        calls.subscribe("wild", {3: OFFSET, 4: 7}),
    )
    assert beyond.stands
    assert empty.stands
    calls.publish("logs", b"new")
    calls.call("PublishToSubject", {2: b"first", 3: "wild.a"})
    assert values(beyond.take(1)) == [b"new"]
    assert values(empty.take(1)) == [b"first"]


def test_a_publish_that_is_too_large_ends_none_of_the_others(
    logd: Logd, calls: LiftbridgeCalls
) -> None:
    """A client has one stream of publishes for all it sends, and opens no other."""
    sizes = [1, 3 << 19, 2, 2 << 20, 3, 3 << 20, 4, 4 << 20, 5]
    requests: list[dict[int, Any]] = [{2: bytes(size), 3: "logs", 7: str(size)} for size in sizes]
    answers = {int(one(answer, 3)): answer for answer in calls.publish_async(requests)}
    assert sorted(answers) == sorted(sizes)
    for size in sizes:
        if size < 10:
            assert 2 not in answers[size]
        else:
            error = decode(answers[size][2][0])
            assert (one(error, 1), str(size)[:3].encode() in one(error, 2)) == (1, True), size
    assert sorted(len(value or b"") for value in logd.values("logs")) == [1, 2, 3, 4, 5]


def test_a_stream_of_many_subjects_is_not_published_to_by_its_name(
    logd: Logd, calls: LiftbridgeCalls
) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        calls.publish("wild", b"x")
    assert raised.value.code() is StatusCode.INVALID_ARGUMENT
    assert "PublishToSubject" in str(raised.value.details())
    (answer,) = calls.publish_async([{2: b"x", 3: "wild", 7: "c"}])
    assert one(decode(answer[2][0]), 1) == 1  # BAD_REQUEST
    calls.call("PublishToSubject", {2: b"y", 3: "wild.a"})
    assert logd.values("wild") == [b"y"]


def test_what_cannot_be_done_has_the_status_that_clients_know(calls: LiftbridgeCalls) -> None:
    cases: list[tuple[str, dict[int, object], StatusCode]] = [
        ("CreateStream", {1: "telemetry.logs", 2: "logs"}, StatusCode.ALREADY_EXISTS),
        ("CreateStream", {1: "a", 2: "../logs"}, StatusCode.INVALID_ARGUMENT),
        ("CreateStream", {1: "a..b", 2: "a"}, StatusCode.INVALID_ARGUMENT),
        ("CreateStream", {1: "a", 2: "__cursors"}, StatusCode.INVALID_ARGUMENT),
        ("CreateStream", {1: "a", 2: "a", 18: {1: True}}, StatusCode.FAILED_PRECONDITION),
        ("CreateStream", {1: "a", 2: "a", 4: 3}, StatusCode.FAILED_PRECONDITION),
        ("DeleteStream", {1: "nowhere"}, StatusCode.NOT_FOUND),
        ("PauseStream", {1: "nowhere"}, StatusCode.NOT_FOUND),
        ("SetStreamReadonly", {1: "logs", 2: [7], 3: True}, StatusCode.NOT_FOUND),
        ("FetchPartitionMetadata", {1: "logs", 2: 1}, StatusCode.NOT_FOUND),
        ("Publish", {2: b"x"}, StatusCode.INVALID_ARGUMENT),
        ("Publish", {2: b"x", 3: "nowhere"}, StatusCode.NOT_FOUND),
        ("Publish", {2: b"x", 3: "logs", 4: 1}, StatusCode.NOT_FOUND),
        ("Publish", {2: b"x", 3: "__cursors"}, StatusCode.INVALID_ARGUMENT),
        ("Publish", {2: b"x", 3: "logs", 6: "a b\r\nPUB c 0"}, StatusCode.INVALID_ARGUMENT),
        ("Publish", {2: bytes(3 << 19), 3: "logs"}, StatusCode.INVALID_ARGUMENT),
        ("Publish", {1: bytes(5000), 2: b"x", 3: "logs"}, StatusCode.INVALID_ARGUMENT),
        ("PublishToSubject", {2: b"x", 3: "a.*"}, StatusCode.INVALID_ARGUMENT),
        ("Publish", {2: bytes(9 << 20), 3: "logs"}, StatusCode.RESOURCE_EXHAUSTED),
    ]
    for method, fields, code in cases:
        assert calls.status(method, fields) is code, (method, str(fields)[:80])


def test_subscriptions_that_cannot_be_end_with_the_status_that_clients_know(
    calls: LiftbridgeCalls,
) -> None:
    calls.publish("logs", b"0")
    cases: list[tuple[str, dict[int, Any], StatusCode]] = [
        ("nowhere", {3: EARLIEST}, StatusCode.NOT_FOUND),
        ("logs", {2: 1}, StatusCode.NOT_FOUND),
        ("logs", {3: OFFSET, 4: 9, 8: STOP_OFFSET, 9: 0}, StatusCode.INVALID_ARGUMENT),
        ("logs", {3: 9}, StatusCode.INVALID_ARGUMENT),
        ("logs", {8: 9}, StatusCode.INVALID_ARGUMENT),
        ("strict", {8: STOP_LATEST}, StatusCode.RESOURCE_EXHAUSTED),
        ("logs", {3: OFFSET, 4: 1, 8: STOP_OFFSET, 9: 0}, StatusCode.INVALID_ARGUMENT),
        ("logs", {11: {1: "group"}}, StatusCode.INVALID_ARGUMENT),
    ]
    for stream, fields, code in cases:
        subscription = calls.subscribe(stream, fields)
        assert (subscription.stands, subscription.code) == (False, code), (stream, fields)


def test_a_deleted_stream_ends_its_subscriptions(calls: LiftbridgeCalls) -> None:
    subscription = calls.subscribe("logs")
    assert subscription.stands
    calls.call("DeleteStream", {1: "logs"})
    assert (subscription.rest(), subscription.code) == ([], StatusCode.NOT_FOUND)


def test_many_publishes_keep_their_order_and_each_is_answered(
    logd: Logd, calls: LiftbridgeCalls
) -> None:
    requests: list[dict[int, Any]] = [
        {2: b"%d" % number, 3: "logs", 7: f"c{number}"} for number in range(1000)
    ]
    requests[500] = {2: b"500", 3: "logs", 7: "c500", 8: NONE}
    requests += [{2: b"x", 3: "nowhere", 7: "lost"}, {2: b"x", 3: "full", 7: "kept"}]
    requests += [{2: b"x", 3: "strict", 7: "wrong", 9: 5}]
    answers = {one(answer, 3): answer for answer in calls.publish_async(requests)}
    assert answers.keys() == {f"c{n}".encode() for n in range(1000)} - {b"c500"} | {
        b"lost",
        b"kept",
        b"wrong",
    }
    offsets = [one(decode(answers[b"c%d" % n][1][0]), 4, 0) for n in range(1000) if n != 500]
    assert offsets == [n for n in range(1000) if n != 500]
    assert one(decode(answers[b"lost"][2][0]), 1) == 2  # NOT_FOUND
    assert one(decode(answers[b"wrong"][2][0]), 1) == 5  # INCORRECT_OFFSET
    assert logd.values("logs") == [b"%d" % number for number in range(1000)]


def test_an_expected_offset_is_given_or_refused(calls: LiftbridgeCalls) -> None:
    assert one(calls.publish("strict", b"0", {9: 0}), 4, 0) == 0
    assert one(calls.publish("strict", b"1", {9: -1}), 4) == 1
    wrong = {2: b"x", 3: "strict", 9: 5}
    assert calls.status("Publish", wrong) is StatusCode.FAILED_PRECONDITION
    silent = {2: b"x", 3: "strict", 8: NONE}
    assert calls.status("Publish", silent) is StatusCode.INVALID_ARGUMENT
    assert one(calls.publish("logs", b"0", {9: 5}), 4, 0) == 0  # it does not check


def test_a_publish_that_cannot_be_stored_in_time_says_why(calls: LiftbridgeCalls) -> None:
    calls.publish("full", b"0")
    with pytest.raises(grpc.RpcError) as raised:
        calls.call("Publish", {2: b"1", 3: "full"}, timeout_s=1)
    assert raised.value.code() is StatusCode.DEADLINE_EXCEEDED


def test_limits_are_told_apart_from_ends(calls: LiftbridgeCalls) -> None:
    standing = [calls.subscribe("logs") for _ in range(SUBSCRIPTIONS_MAX)]
    assert all(subscription.stands for subscription in standing)
    refused = calls.subscribe("logs")
    # RESOURCE_EXHAUSTED would be the end of what there is to read.
    assert (refused.stands, refused.code) == (False, StatusCode.UNAVAILABLE)
    standing[0].cancel()
    wait_until(lambda: calls.subscribe("logs").stands, what="room for another subscription")


def test_a_subscriber_that_takes_nothing_holds_nobody_up(
    logd: Logd, calls: LiftbridgeCalls
) -> None:
    slow = calls.subscribe("logs", {3: EARLIEST})
    requests = [{2: bytes(200_000) + b"%d" % n, 3: "logs", 7: str(n)} for n in range(200)]
    assert len(calls.publish_async(requests)) == 200
    quick = calls.subscribe("logs", {3: EARLIEST, 8: STOP_LATEST})
    assert len(quick.rest()) == 200
    sent = logd.daemon.status()["info"]["grpc"]["messages_sent"]
    assert sent < 300, "what the slow one has not taken was sent all the same"
    assert [value[200_000:] for value in values(slow.take(200))] == [b"%d" % n for n in range(200)]
    slow.cancel()


def test_group_members_take_a_partition_over_by_a_later_epoch(calls: LiftbridgeCalls) -> None:
    first = calls.subscribe("logs", {11: {1: "group", 2: 1, 3: "one"}})
    second = calls.subscribe("logs", {11: {1: "group", 2: 2, 3: "two"}})
    assert (first.rest(), first.code) == ([], StatusCode.OK)
    assert second.stands
    late = calls.subscribe("logs", {11: {1: "group", 2: 1, 3: "one"}})
    assert (late.stands, late.code) == (False, StatusCode.FAILED_PRECONDITION)
    second.cancel()


async def test_publish_envelopes_on_nats_are_acked_in_their_inbox(
    logd: Logd, calls: LiftbridgeCalls, nats_url: str
) -> None:
    client = await nats.connect(nats_url)
    inbox = client.new_inbox()
    acks = await client.subscribe(inbox)
    message = {2: b"key", 3: b"value", 9: [entry("a", b"1")], 10: inbox, 11: "c", 12: ALL, 1: -1}
    bare = b"\xb9\x0e\x43\xb4\x00\x08\x00\x00" + encode(message)
    for data in (bare, encode_envelope(0, encode(message))):  # without and with a CRC
        await client.publish("telemetry.logs", data)
        answer = (await acks.next_msg(timeout=20)).data
        assert answer[:8] == b"\xb9\x0e\x43\xb4\x00\x08\x00\x01"
        ack = decode(answer[8:])
        assert (one(ack, 1), one(ack, 5), one(ack, 6)) == (b"logs", inbox.encode(), b"c")
    damaged = encode_envelope(0, encode(message))[:-1] + b"\xff"
    await client.publish("telemetry.logs", damaged)
    await client.publish("full", b"taken")
    await client.publish("full", bare)
    refusal = decode((await acks.next_msg(timeout=20)).data[8:])
    assert (one(refusal, 10), one(refusal, 1002)) == (1, 20005)  # UNKNOWN, and ours: STREAM_FULL
    await client.close()
    subscription = await asyncio.to_thread(calls.subscribe, "logs", {3: EARLIEST})
    found = await asyncio.to_thread(subscription.take, 3)
    assert values(found) == [b"value", b"value", damaged]
    assert [one(item, 2, b"") for item in found] == [b"key", b"key", b""]
    subscription.cancel()


def test_cursors_go_with_their_stream(calls: LiftbridgeCalls) -> None:
    names = [one(decode(item), 1) for item in calls.call("FetchMetadata", {})[2]]
    assert b"__cursors" in names, "clients look there before they set one"
    for _ in range(2):
        cursor = {1: "logs", 3: "reader"}
        assert one(calls.call("FetchCursor", cursor), 1) == 2**64 - 1
        calls.publish("logs", b"0")
        calls.call("SetCursor", cursor | {4: 1})
        calls.call("SetCursor", cursor | {4: 0})  # it may go back
        assert one(calls.call("FetchCursor", cursor), 1, 0) == 0
        assert calls.status("SetCursor", cursor | {4: 9}) is StatusCode.OUT_OF_RANGE
        calls.call("DeleteStream", {1: "logs"})
        assert calls.status("FetchCursor", cursor) is StatusCode.NOT_FOUND
        calls.call("CreateStream", {1: "telemetry.logs", 2: "logs"})


def test_no_request_does_harm(logd: Logd, calls: LiftbridgeCalls) -> None:
    rng = random.Random(5)
    kinds = [b"", b"logs", b"\xff", bytes(300), encode({1: "logs"}), b"__cursors", b"a.*", b"\r\n"]
    methods = {
        "CreateStream", "DeleteStream", "PauseStream", "SetStreamReadonly", "FetchMetadata",
        "FetchPartitionMetadata", "PublishToSubject", "SetCursor", "FetchCursor",
        "JoinConsumerGroup", "LeaveConsumerGroup", "FetchConsumerGroupAssignments",
        "ReportConsumerGroupCoordinator",
    }  # fmt: skip
    numbers = [0, 1, -1, 2**63 - 1, -(2**63), 2**31]
    seen = set()
    for _ in range(40):
        for method in sorted(methods):
            fields = {n: rng.choice([*kinds, *numbers]) for n in rng.sample(range(1, 20), 5)}
            timeout_s = 0.2 if method == "PublishToSubject" else 10
            seen.add(calls.status(method, fields, timeout_s=timeout_s))
    bad = {StatusCode.UNKNOWN, StatusCode.INTERNAL, StatusCode.UNIMPLEMENTED}
    assert not seen & bad, logd.daemon.log()[-3000:]
    assert StatusCode.INVALID_ARGUMENT in seen
    requests = [{n: rng.choice([*kinds, *numbers]) for n in (2, 3, 4)} for _ in range(200)]
    with suppress(grpc.RpcError):  # one that does not parse ends them all
        calls.publish_async(requests)
    calls.status("CreateStream", {1: "telemetry.logs", 2: "logs"})
    assert one(calls.publish("logs", b"0"), 1) == b"logs"


def test_subscribers_are_sent_elsewhere_when_logd_stops(logd: Logd, calls: LiftbridgeCalls) -> None:
    calls.publish("logs", b"0")
    waiting = calls.subscribe("logs", {3: EARLIEST})
    assert values(waiting.take(1)) == [b"0"]
    logd.restart()
    assert (waiting.rest(), waiting.code) == ([], StatusCode.UNAVAILABLE)
    again = calls.subscribe("logs", {3: OFFSET, 4: 0, 8: STOP_LATEST})
    assert values(again.rest()) == [b"0"]


def test_health_is_told_by_the_standard_service(calls: LiftbridgeCalls) -> None:
    check: Any = calls.channel.unary_unary("/grpc.health.v1.Health/Check")
    for service in ("", "proto.API"):
        assert decode(check(encode({1: service}))) == {1: [1]}  # SERVING
    with pytest.raises(grpc.RpcError) as raised:
        check(encode({1: "other"}))
    assert raised.value.code() is StatusCode.NOT_FOUND


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_tells_which_calls_there_are(calls: LiftbridgeCalls, version: str) -> None:
    method = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
    ask: Any = calls.channel.stream_stream(method)
    listed, found, none = (
        decode(answer)
        for answer in ask(iter(map(encode, ({7: "*"}, {4: "proto.API"}, {4: "proto.Nothing"}))))
    )
    names = [one(decode(each), 1) for each in decode(one(listed, 6))[1]]
    assert {b"proto.API", b"grpc.health.v1.Health"} <= set(names)
    assert b"PublishToSubject" in one(decode(one(found, 4)), 1)
    assert 7 in none


def test_without_a_word_in_the_configuration_there_is_no_reflection(
    tmp_path: Path, nats_url: str
) -> None:
    section = {"listen": f"127.0.0.1:{free_port()}"}
    with (
        Logd(tmp_path, nats_url, [], grpc=section) as logd,
        LiftbridgeCalls(address(logd)) as calls,
    ):
        ask: Any = calls.channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        )
        with pytest.raises(grpc.RpcError) as raised:
            list(ask(iter([encode({7: "*"})])))
        assert raised.value.code() is StatusCode.UNIMPLEMENTED
