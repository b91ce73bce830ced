"""Publishers that retry as their protocol allows, and keep a ledger of what was acked."""

import asyncio
import contextlib
import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from hashlib import blake2b

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.logd.format.acks import Nack, PubAck, decode_ack
from penstock.logd.format.batch import Record, build_batch, encode_body
from penstock.logd.format.envelope import BatchPayload, decode_envelope, encode_batch
from tests.harness.ledger import (
    Acked,
    Item,
    Keys,
    Ledger,
    Rule,
    encode,
    headers_of,
    is_tombstone,
    key_of,
    rows_of,
    value_of,
)

_ACK_WAIT_S = 1.0
_PAUSE_S = 0.1
_REPEAT_ONE_IN = 10
_REPEAT_WITHIN_S = 60
"""Half of the window of message ids, so that one which is under way for long is still known."""

_NOT_NOW = (Nack.BUSY, Nack.STORAGE_FAILED, Nack.NOT_ENOUGH_REPLICAS)
_FAILED = (nats.errors.Error, nats.js.errors.Error, TimeoutError)


class Publisher(ABC):
    """One publisher.

    Args:
        stream: That stores its subject.
        kind: Ends its name and its subject.
        rng: For what it draws.
        keys: Of its records.

    Attributes:
        name: In its records.
        rule: What must hold of it.
    """

    rule = Rule.IN_ORDER

    def __init__(
        self, stream: str, kind: str, rng: random.Random, *, keys: Keys = Keys.NONE
    ) -> None:
        self.name = f"{stream}-{kind}"
        self.stream = stream
        self.keys = keys
        self.subject = f"soak.{stream}.{self.name}"
        self.rng = rng
        self.count = 0
        self.clock = SystemClock()

    async def run(self, client: Client, ledger: Ledger, stop: asyncio.Event) -> None:
        """Publish until told to stop."""
        while not stop.is_set():
            await self.turn(client, ledger, stop)
            await asyncio.sleep(0)

    @abstractmethod
    async def turn(self, client: Client, ledger: Ledger, stop: asyncio.Event) -> None:
        """Publish what comes next."""


class WithoutId(Publisher):
    """`js.publish()` again and again until it is acked: at least once."""

    @override
    async def turn(self, client: Client, ledger: Ledger, stop: asyncio.Event) -> None:
        item = Item(self.name, self.count)
        sent_ns = self.clock.unix_ns()
        while not stop.is_set():
            try:
                ack = await client.jetstream().publish(
                    self.subject, encode(item), timeout=_ACK_WAIT_S
                )
            except _FAILED:
                ledger.counts["retries"] += 1
                await pause(stop)
                continue
            ledger.note(Acked(self.stream, item, ack.seq - 1, sent_ns), self.rule)
            break
        self.count += 1


class WithoutReply(Publisher):
    """Publishes and hopes; what arrives, arrives once."""

    rule = Rule.ONCE_IN_ORDER

    @override
    async def turn(self, client: Client, ledger: Ledger, stop: asyncio.Event) -> None:
        with contextlib.suppress(*_FAILED):
            await client.publish(self.subject, encode(Item(self.name, self.count)))
        self.count += 1
        ledger.counts["sent without reply"] += 1
        await pause(stop)


class WithId(Publisher):
    """`js.publish()` with `Nats-Msg-Id`, several at a time; repeats some that were acked."""

    def __init__(
        self,
        stream: str,
        kind: str,
        rng: random.Random,
        *,
        window: int = 1,
        keys: Keys = Keys.NONE,
        slow: bool = False,
    ) -> None:
        super().__init__(stream, kind, rng, keys=keys)
        self.window = window
        self.slow = slow
        self.rule = Rule.ONCE_IN_ORDER if window == 1 else Rule.ONCE
        self._recent: deque[tuple[Item, int, int]] = deque(maxlen=200)

    @override
    async def turn(self, client: Client, ledger: Ledger, stop: asyncio.Event) -> None:
        first, self.count = self.count, self.count + self.window
        numbers = range(first, self.count)
        await asyncio.gather(*(self._until_acked(client, ledger, stop, n) for n in numbers))
        if self._recent and self.rng.randrange(_REPEAT_ONE_IN) == 0:
            await self._repeat(client, ledger)
        if self.slow:
            await pause(stop)

    async def _until_acked(
        self, client: Client, ledger: Ledger, stop: asyncio.Event, number: int
    ) -> None:
        item = Item(self.name, number)
        sent_ns = self.clock.unix_ns()
        while not stop.is_set():
            try:
                offset, _ = await self._publish(client, item)
            except _FAILED:
                ledger.counts["retries"] += 1
                await pause(stop)
                continue
            ledger.note(Acked(self.stream, item, offset, sent_ns), self.rule)
            self._recent.append((item, offset, self.clock.monotonic_ns()))
            return

    async def _repeat(self, client: Client, ledger: Ledger) -> None:
        item, offset, acked_ns = self.rng.choice(self._recent)
        if self.clock.monotonic_ns() - acked_ns > _REPEAT_WITHIN_S * 1_000_000_000:
            return
        try:
            stored = await self._publish(client, item)
        except _FAILED:
            return
        ledger.counts["repeats known"] += 1
        if stored != (offset, True):
            ledger.broken.append(
                f"{item} was stored at {offset}; its repeat was answered {stored}, not duplicate"
            )

    async def _publish(self, client: Client, item: Item) -> tuple[int, bool]:
        headers = {"Nats-Msg-Id": f"{item.publisher}-{item.number}"} | headers_of(item, self.keys)
        key, value = key_of(item, self.keys), value_of(item, self.keys)
        if key is not None:
            headers["Penstock-Key"] = key.decode()
        if is_tombstone(item, self.keys):
            headers["Penstock-Tombstone"] = "true"
        ack = await client.jetstream().publish(
            self.subject, value or b"", headers=headers, timeout=_ACK_WAIT_S
        )
        return ack.seq - 1, bool(ack.duplicate)


class Batches(Publisher):
    """Batches in a producer's sequence, several at a time; goes on from where a nack says."""

    rule = Rule.BATCHES

    def __init__(
        self,
        stream: str,
        kind: str,
        rng: random.Random,
        *,
        window: int = 1,
        keys: Keys = Keys.NONE,
    ) -> None:
        super().__init__(stream, kind, rng, keys=keys)
        self.window = window
        self.producer = blake2b(self.name.encode(), digest_size=16).digest()
        self._acked: tuple[int, int] = (0, -1)
        self._sent_ns: dict[int, int] = {}

    @override
    async def turn(self, client: Client, ledger: Ledger, stop: asyncio.Event) -> None:
        """Send the next batches; `count` is the last sequence known to be stored."""
        sequences = range(self.count + 1, self.count + 1 + self.window)
        known = self._acked[0]
        for sequence in sequences:
            self._sent_ns.setdefault(sequence, self.clock.unix_ns())
        answers = await asyncio.gather(*(self._publish(client, n) for n in sequences))
        for sequence, answer in zip(sequences, answers, strict=True):
            if answer is not None:
                self._take(sequence, answer, known, ledger)
        if None in answers:
            ledger.counts["retries"] += 1
            await pause(stop)
        elif self.rng.randrange(_REPEAT_ONE_IN) == 0 and self._acked[0]:
            await self._repeat(client, ledger)

    def _take(self, sequence: int, answer: PubAck, known: int, ledger: Ledger) -> None:
        if answer.nack is None:
            last_row = rows_of(self.name, sequence) - 1
            if answer.offset >= 0:
                item = Item(self.name, sequence, last_row)
                sent_ns = self._sent_ns.pop(sequence)
                ledger.note(Acked(self.stream, item, answer.offset, sent_ns), self.rule)
            self._acked = max(self._acked, (sequence, answer.offset))
            self.count = max(self.count, sequence)
        elif answer.nack in (Nack.SEQUENCE_GAP, Nack.UNKNOWN_PRODUCER):
            assert answer.sequence is not None
            ledger.counts["gaps"] += 1
            if answer.sequence < known:
                ledger.broken.append(
                    f"{self.name}: {known} was acked, then the last sequence was {answer.sequence}"
                )
            self.count = max(answer.sequence, self._acked[0])

    async def _repeat(self, client: Client, ledger: Ledger) -> None:
        sequence, offset = self._acked
        answer = await self._publish(client, sequence)
        if answer is None or answer.nack in _NOT_NOW:
            return
        ledger.counts["repeats known"] += 1
        if not answer.duplicate or answer.offset not in (offset, -1):
            ledger.broken.append(
                f"{self.name}: {sequence} was stored at {offset}; its repeat gave {answer}"
            )

    async def _publish(self, client: Client, sequence: int) -> PubAck | None:
        try:
            reply = await client.request(self.subject, self._batch(sequence), timeout=_ACK_WAIT_S)
        except _FAILED:
            return None
        envelope = decode_envelope(reply.data)
        assert envelope is not None
        return decode_ack(bytes(envelope.payload))

    def _batch(self, sequence: int) -> bytes:
        now_ns = self.clock.unix_ns()
        items = [Item(self.name, sequence, row) for row in range(rows_of(self.name, sequence))]
        records = [self._record(item, now_ns) for item in items]
        return encode_batch(
            BatchPayload(
                schema_version=1,
                record_count=len(records),
                producer_id=self.producer,
                previous_sequence=sequence - 1,
                sequence=sequence,
                body=encode_body(build_batch(records), compression="zstd"),
            )
        )

    def _record(self, item: Item, now_ns: int) -> Record:
        headers = tuple((name, text.encode()) for name, text in headers_of(item, self.keys).items())
        key, value = key_of(item, self.keys), value_of(item, self.keys)
        return Record(self.subject, value, now_ns, key, headers)


def mixed(stream: str, seed: int) -> Sequence[Publisher]:
    """Publishers of each kind, for a stream on the subject `soak.<stream>.>`."""
    rng = random.Random(seed)
    return [
        WithoutId(stream, "retried", rng),
        WithoutReply(stream, "unanswered", rng),
        WithId(stream, "single", rng),
        WithId(stream, "many", rng, window=4),
        Batches(stream, "batches", rng, window=2),
    ]


def few(stream: str, seed: int) -> Sequence[Publisher]:
    """One publisher, of messages with ids."""
    return [WithId(stream, "single", random.Random(seed))]


async def pause(stop: asyncio.Event, seconds: float = _PAUSE_S) -> None:
    """Let a moment pass, less when the load ends."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
