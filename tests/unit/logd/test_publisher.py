"""The publisher against a log that loses messages and answers: nothing lost, nothing twice."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

import pytest
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError

from penstock.logd.errors import RefusedError, UnavailableError
from penstock.logd.format.acks import Nack, PubAck, encode_ack
from penstock.logd.format.batch import Record, decode_body
from penstock.logd.format.envelope import (
    TYPE_BATCH_ACK,
    decode_batch,
    decode_envelope,
    encode_envelope,
)
from penstock.logd.intake.dedup import Accept, Duplicate, ProducerTable
from penstock.logd.publisher import BatchPartsError, Publisher, PublishOptions, PublishRefusedError
from penstock.logd.publisher.publisher import SubjectQueues


class Reply:
    def __init__(self, data: bytes, *, subject: str = "", headers: Any = None) -> None:
        self.data = data
        self.subject = subject
        self.headers = headers


class FakeLog:
    """A NATS connection of nats-py's with a logd at its end, which loses what `rng` says.

    Attributes:
        values: What is stored, in order.
        waiting: Requests under way.
        producer_ids: Of batches, in the order they came first.
    """

    is_closed = False
    is_connected = True
    max_payload = 1024 * 1024

    def __init__(self, rng: random.Random, trouble: float) -> None:
        self.rng = rng
        self.trouble = trouble
        self.values: list[bytes] = []
        self.ids: dict[str, int] = {}
        self.producers = ProducerTable(expiry_ns=10**18, max_producers=10)
        self.producer_ids: dict[bytes, None] = {}
        self.under_way = self.most_under_way = 0
        self.nack: Nack | None = None
        self.inboxes = 0
        self.on_reply: dict[str, Callable[[Reply], Awaitable[None]]] = {}
        self.answering: set[asyncio.Task[None]] = set()

    def new_inbox(self) -> str:
        self.inboxes += 1
        return f"_INBOX.{self.inboxes}"

    async def subscribe(self, subject: str, cb: Callable[[Reply], Awaitable[None]]) -> "FakeLog":
        self.on_reply[subject.removesuffix("*")] = cb
        return self

    async def unsubscribe(self) -> None:
        self.on_reply.clear()

    async def publish(
        self, subject: str, payload: bytes, *, reply: str, headers: dict[str, str] | None
    ) -> None:
        task = asyncio.create_task(self._reply(reply, subject, payload, headers))
        self.answering.add(task)
        task.add_done_callback(self.answering.discard)

    async def _reply(
        self, reply: str, subject: str, payload: bytes, headers: dict[str, str] | None
    ) -> None:
        try:
            answer = await self.request(subject, payload, headers=headers)
        except NoRespondersError:
            answer = Reply(b"", headers={"Status": "503"})
        except NatsTimeoutError:
            return
        answer.subject = reply
        prefix = reply[: reply.rindex(".") + 1]
        if prefix in self.on_reply:
            await self.on_reply[prefix](answer)

    async def request(
        self, subject: str, payload: bytes, *, headers: dict[str, str] | None
    ) -> Reply:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            return await self._request(payload, headers or {})
        finally:
            self.under_way -= 1

    async def _request(self, payload: bytes, headers: dict[str, str]) -> Reply:
        fate = self.rng.random() / self.trouble if self.trouble else 9.0
        if fate < 0.2:
            raise NoRespondersError
        lost, busy, unheard = fate < 0.4, fate < 0.6, fate < 0.8
        if lost:
            raise NatsTimeoutError
        envelope = decode_envelope(payload)
        if self.nack is not None or busy:
            ack = PubAck(stream="s", nack=self.nack or Nack.BUSY, description="no")
        elif envelope is None:
            ack = self._plain(payload, headers["Nats-Msg-Id"])
        else:
            ack = self._batch(envelope.payload)
        await asyncio.sleep(0)
        if unheard:
            raise NatsTimeoutError
        data = encode_ack(ack)
        return Reply(data if envelope is None else encode_envelope(TYPE_BATCH_ACK, data))

    def _plain(self, payload: bytes, message_id: str) -> PubAck:
        known = message_id in self.ids
        offset = self.ids.setdefault(message_id, len(self.values))
        if not known:
            self.values.append(payload)
        return PubAck(stream="s", offset=offset, duplicate=known)

    def _batch(self, payload: memoryview) -> PubAck:
        batch = decode_batch(payload)
        self.producer_ids[batch.producer_id] = None
        match self.producers.check(batch.producer_id, batch.previous_sequence, batch.sequence, 0):
            case Accept():
                self.values += decode_body(batch.body).column("value").to_pylist()
                last = len(self.values) - 1
                self.producers.record(batch.producer_id, batch.sequence, last, 0)
                return PubAck(stream="s", offset=last, count=batch.record_count)
            case Duplicate(offset):
                count = batch.record_count
                return PubAck(stream="s", offset=offset, count=count, duplicate=True)
            case gap:
                nack = Nack.SEQUENCE_GAP if gap.last else Nack.UNKNOWN_PRODUCER
                return PubAck(stream="s", nack=nack, description="gap", sequence=gap.last)


def make(log: FakeLog, **options: Any) -> Publisher:
    options = {"ack_timeout_s": 0.002} | options if log.trouble else options
    return Publisher(log, PublishOptions(**options), rng=log.rng, pauses_s=(1e-5, 1e-4))


def record(number: int) -> Record:
    return Record("t.a", b"%d" % number, number)


@pytest.mark.parametrize("seed", range(20))
async def test_batches_are_stored_once_and_in_order_whatever_is_lost(seed: int) -> None:
    log = FakeLog(random.Random(seed), trouble=0.7)
    async with make(log, max_in_flight=7) as publisher:
        tasks = [
            await publisher.submit_batch("t.a", [record(2 * n), record(2 * n + 1)])
            for n in range(30)
        ]
    assert [int(value) for value in log.values] == list(range(60))
    assert all(task.result().nack is None for task in tasks)
    assert log.most_under_way <= 7


@pytest.mark.parametrize("seed", range(20))
async def test_plain_messages_are_stored_once_and_almost_in_order(seed: int) -> None:
    log = FakeLog(random.Random(seed), trouble=0.7)
    async with make(log, max_in_flight=5) as publisher:
        tasks = [await publisher.submit("t.a", b"%d" % n) for n in range(60)]
    numbers = [int(value) for value in log.values]
    assert sorted(numbers) == list(range(60))
    assert [numbers[task.result().offset] for task in tasks] == list(range(60))
    for position, number in enumerate(numbers):
        assert all(number - earlier < 5 for earlier in numbers[position:])
    alone = FakeLog(random.Random(seed), trouble=0.7)
    async with make(alone, max_in_flight=1) as publisher:
        for n in range(20):
            await publisher.submit("t.a", b"%d" % n)
    assert [int(value) for value in alone.values] == list(range(20))


async def test_a_producer_that_logd_has_forgotten_goes_on() -> None:
    log = FakeLog(random.Random(1), trouble=0)
    async with make(log) as publisher:
        await publisher.publish_batch("t.a", [record(0)])
        log.producers = ProducerTable(expiry_ns=10**18, max_producers=10)
        ack = await publisher.publish_batch("t.a", [record(1)])
        assert (ack.offset, log.values) == (1, [b"0", b"1"])


async def test_a_batch_that_is_refused_for_good_does_not_stop_those_behind_it() -> None:
    log = FakeLog(random.Random(1), trouble=0)
    async with make(log) as publisher:
        await publisher.publish_batch("t.a", [record(0)])
        log.nack = Nack.BAD_BATCH
        with pytest.raises(PublishRefusedError) as raised:
            await publisher.publish_batch("t.a", [record(1)])
        assert (raised.value.nack, raised.value.code) == (Nack.BAD_BATCH, "BAD_BATCH")
        log.nack = None
        await publisher.publish_batch("t.a", [record(2)])
    assert log.values == [b"0", b"2"]


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_batch_that_ends_early_lets_none_behind_it_overtake_one_before_it(
    cancelled: bool,
) -> None:
    log = FakeLog(random.Random(1), trouble=0)
    answering, held, tries = log.request, asyncio.Event(), dict[bytes, int]()

    async def request(subject: str, payload: bytes, **rest: Any) -> Reply:
        envelope = decode_envelope(payload)
        assert envelope is not None
        (value,) = decode_body(decode_batch(envelope.payload).body).column("value").to_pylist()
        tries[value] = tries.get(value, 0) + 1
        if value == b"1" and tries[value] <= 2:
            for _ in range(1 if tries[value] == 1 else 5000):  # time enough for the third to pass
                await asyncio.sleep(0)
            raise NoRespondersError
        if value == b"2" and not cancelled:
            refusal = PubAck(stream="s", nack=Nack.BAD_BATCH, description="no")
            return Reply(encode_envelope(TYPE_BATCH_ACK, encode_ack(refusal)))
        if value == b"2":
            await held.wait()
        return await answering(subject, payload, **rest)

    log.request = request  # type: ignore[method-assign]
    async with make(log) as publisher:
        await publisher.publish_batch("t.a", [record(0)])
        tasks = [await publisher.submit_batch("t.a", [record(n)]) for n in (1, 2, 3)]
        if cancelled:
            await asyncio.sleep(0)
            tasks[1].cancel()
    assert log.values == [b"0", b"1", b"3"]
    assert [task.result().duplicate for task in (tasks[0], tasks[2])] == [False, False]


async def test_what_stays_refused_or_unanswered_is_given_up_at_the_deadline() -> None:
    log = FakeLog(random.Random(1), trouble=0)
    async with make(log, retry_s=0.005) as publisher:
        log.nack = Nack.STREAM_FULL
        with pytest.raises(PublishRefusedError) as raised:
            await publisher.publish("t.a", b"x")
        assert raised.value.nack is Nack.STREAM_FULL
        log.is_connected = False
        with pytest.raises(UnavailableError, match="not connected"):
            await publisher.publish("t.a", b"x")
        log.is_closed = True
        with pytest.raises(UnavailableError, match="closed"):
            await publisher.publish("t.a", b"x")


async def test_an_answer_after_its_time_is_not_taken_for_that_of_the_next_attempt() -> None:
    log = FakeLog(random.Random(1), trouble=0)
    answering, attempts = log.request, list[str]()
    again, first_taken = asyncio.Event(), asyncio.Event()

    async def request(subject: str, payload: bytes, **rest: Any) -> Reply:
        answer = await answering(subject, payload, **rest)
        attempts.append(subject)
        if len(attempts) == 1:
            await again.wait()  # past the first attempt's time
            first_taken.set()
        else:
            again.set()
            await first_taken.wait()
            await asyncio.sleep(0)
        return answer

    log.request = request  # type: ignore[method-assign]
    async with make(log, ack_timeout_s=0.05) as publisher:
        ack = await publisher.submit("t.a", b"x")
        assert (await ack).duplicate
    assert log.values == [b"x"]


async def test_a_publisher_has_one_inbox_until_it_is_closed() -> None:
    log = FakeLog(random.Random(1), trouble=0)
    async with make(log) as publisher:
        first = [asyncio.create_task(publisher.publish("t.a", b"x")) for _ in range(5)]
        await asyncio.gather(*first, publisher.publish_batch("t.b", [record(1)]))
        assert (log.inboxes, len(log.on_reply)) == (1, 1)
    assert not log.on_reply


async def test_an_answer_of_somebody_else_is_no_ack() -> None:
    log = FakeLog(random.Random(1), trouble=0)

    async def request(*_: Any, **__: Any) -> Reply:
        return Reply(b'{"hello": 1}')

    log.request = request  # type: ignore[method-assign]
    async with make(log, retry_s=0.001) as publisher:
        for publishing in (
            publisher.publish("t.a", b"x"),
            publisher.publish_batch("t.a", [record(1)]),
        ):
            with pytest.raises(UnavailableError, match="not logd's"):
                await publishing


@pytest.mark.parametrize("key", [b"", b" a", b"a\r\nX: y", b"\xff"])
async def test_a_key_that_a_header_would_change_is_refused_before_it_is_sent(key: bytes) -> None:
    log = FakeLog(random.Random(1), trouble=0)
    async with make(log) as publisher:
        with pytest.raises(ValueError, match="cannot stand in a NATS header"):
            await publisher.publish("t.a", b"x", key=key)
    assert log.values == []


@pytest.mark.parametrize("subject", ["", "a b", "a..b", "a.*", ">", "a\r\nPUB b 0"])
async def test_a_subject_that_is_none_to_publish_on_is_refused_at_once(subject: str) -> None:
    log = FakeLog(random.Random(1), trouble=0)
    async with make(log) as publisher:
        for publishing in (
            publisher.publish(subject, b"x"),
            publisher.delete(subject, key=b"k"),
            publisher.publish_batch(subject, [record(1)]),
        ):
            with pytest.raises(ValueError, match="none to publish on"):
                await publishing
    assert log.values == []


@pytest.mark.parametrize("headers", [{"a b": "c"}, {"a": "b\r\nPenstock-Key: c"}, {"": "a"}])
async def test_a_header_that_would_be_another_is_refused_at_once(headers: dict[str, str]) -> None:
    log = FakeLog(random.Random(1), trouble=0)
    async with make(log) as publisher:
        with pytest.raises(ValueError, match="a value of one line"):
            await publisher.publish("t.a", b"x", headers=headers)
    assert log.values == []


async def test_a_message_that_is_too_large_with_its_headers_is_refused_at_once() -> None:
    """The server would hang up, and take what else is under way with it."""
    log = FakeLog(random.Random(0), trouble=0.0)
    block = "NATS/1.0\r\nNats-Expected-Stream: s\r\nNats-Msg-Id: m\r\n\r\n"
    room = log.max_payload - len(block)
    async with make(log, stream="s") as publisher:
        await publisher.publish("t.a", b"x" * room, message_id="m")
        with pytest.raises(RefusedError) as caught:
            await publisher.publish("t.a", b"x" * (room + 1), message_id="m")
    assert (caught.value.code, len(log.values)) == ("NATS_MAX_PAYLOAD", 1)


async def test_a_batch_above_the_maximum_payload_goes_in_parts() -> None:
    log = FakeLog(random.Random(0), trouble=0.0)
    log.max_payload = 4_000
    sizes = [10, 2_500, 700, 700, 700, 1, 1, 3_000, 90]
    values = [bytes([65 + number]) * size for number, size in enumerate(sizes)]
    async with make(log) as publisher:
        ack = await publisher.publish_batch("t.a", [Record("t.a", v, 1) for v in values])
        more = await publisher.publish_batch("t.a", [record(1)])
    assert (ack.count, ack.offset, more.offset) == (len(values), len(values) - 1, len(values))
    assert log.values[: len(values)] == values


async def test_of_a_batch_in_parts_each_part_says_what_became_of_it() -> None:
    log = FakeLog(random.Random(0), trouble=0.0)
    log.max_payload = 4_000
    values = [b"a" * 1_000, b"b" * 1_000, b"c" * 9_000, b"d" * 1_000]
    async with make(log) as publisher:
        with pytest.raises(BatchPartsError, match=r"1 of . parts .* at most 4000 bytes") as caught:
            await publisher.publish_batch("t.a", [Record("t.a", v, 1) for v in values])
    refused = [count for count, found in caught.value.parts if isinstance(found, RefusedError)]
    assert refused == [1]
    assert log.values == [values[0], values[1], values[3]]


async def test_no_more_than_allowed_are_under_way_and_closing_gives_them_up() -> None:
    log = FakeLog(random.Random(1), trouble=0)
    silent = asyncio.Event()

    async def request(*_: Any, **__: Any) -> Reply:
        await silent.wait()
        raise RefusedError("NONE", "never")

    log.request = request  # type: ignore[method-assign]
    publisher = make(log, max_in_flight=2)
    tasks = [await publisher.submit("t.a", b"x") for _ in range(2)]
    third = asyncio.create_task(publisher.submit("t.a", b"x"))
    await asyncio.wait({third}, timeout=0.05)
    assert not third.done()
    await publisher.close()
    for task in tasks:
        with pytest.raises(UnavailableError, match="closed before the answer came"):
            await task
    with pytest.raises(UnavailableError, match="closed"):
        await third


async def test_who_waits_for_an_answer_is_told_that_the_publisher_was_closed() -> None:
    """And not cancelled: that would end the caller without a word."""
    log = FakeLog(random.Random(1), trouble=0)
    log.is_connected = False
    publisher = make(log)
    publishing = [
        asyncio.create_task(publisher.publish("t.a", b"x")),
        asyncio.create_task(publisher.publish_batch("t.b", [record(1)])),
    ]
    await asyncio.sleep(0)
    begun = await publisher.submit("t.a", b"y")
    await publisher.close()
    for task in (*publishing, begun):
        with pytest.raises(UnavailableError, match="closed before the answer came"):
            await task


async def test_a_caller_who_is_cancelled_stays_so() -> None:
    log = FakeLog(random.Random(1), trouble=0)
    log.is_connected = False
    async with make(log) as publisher:
        publishing = asyncio.create_task(publisher.publish("t.a", b"x"))
        await asyncio.sleep(0)
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing


@pytest.mark.parametrize("seed", range(10))
async def test_subjects_beyond_the_limit_are_forgotten_and_lose_and_repeat_nothing(
    seed: int,
) -> None:
    log = FakeLog(random.Random(seed), trouble=0.7)
    log.producers = ProducerTable(expiry_ns=10**18, max_producers=1000)
    sent = dict[str, list[bytes]]()
    async with make(log, max_in_flight=5, max_subjects=3) as publisher:
        for number in range(200):
            subject = f"t.{log.rng.randrange(8)}"
            value = b"%s %d" % (subject.encode(), number)
            sent.setdefault(subject, []).append(value)
            await publisher.submit_batch(subject, [Record(subject, value, number)])
        await publisher.flush()
    assert len(log.producer_ids) > 8, "subjects were forgotten, and came back as new producers"
    for subject, values in sent.items():
        assert [v for v in log.values if v.startswith(subject.encode() + b" ")] == values


async def test_the_subject_idle_longest_is_forgotten_first_and_a_busy_one_never() -> None:
    log = FakeLog(random.Random(1), trouble=0)
    answering, silent = log.request, asyncio.Event()

    async def request(subject: str, payload: bytes, **rest: Any) -> Reply:
        if subject == "t.busy":
            await silent.wait()
        return await answering(subject, payload, **rest)

    log.request = request  # type: ignore[method-assign]
    async with make(log, max_subjects=3) as publisher:
        await publisher.submit_batch("t.busy", [Record("t.busy", b"", 1)])
        for subject in ("t.a", "t.b", "t.a", "t.c"):
            await publisher.publish_batch(subject, [Record(subject, b"", 1)])
        known = set(log.producer_ids)
        for subject in ("t.a", "t.c"):
            await publisher.publish_batch(subject, [Record(subject, b"", 1)])
        assert set(log.producer_ids) == known, "both are remembered"
        await publisher.publish_batch("t.b", [Record("t.b", b"", 1)])
        assert len(set(log.producer_ids) - known) == 1, "it was forgotten"
        silent.set()
        await publisher.publish_batch("t.busy", [Record("t.busy", b"", 1)])
    assert len(log.values) == 9


def test_more_subjects_than_the_limit_are_remembered_only_while_they_are_in_use() -> None:
    queues = SubjectQueues(3)
    with ExitStack() as used:
        for number in range(5):
            queue = queues.of(f"t.{number}")
            queue.users += 1
            used.callback(setattr, queue, "users", 0)
        assert len(queues) == 5
    queues.of("t.last")
    assert list(queues) == ["t.3", "t.4", "t.last"]
