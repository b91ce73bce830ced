"""Intake and replica over a log that loses what was not synced: seeded schedules of crashes.

The world draws from one seed which messages arrive, which are retried, when the disk syncs and
when the process dies. The checker holds the true history: what was acked is in the log at the
offset that was said, once, and each producer's batches are there in order without a hole.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from penstock.logd.batch import Record, build_batch, decode_body, encode_body
from penstock.logd.core.intake import Arrived, Intake
from penstock.logd.core.metadata import StreamConfig
from penstock.logd.core.replica import NodeId, Replica, Synced
from penstock.logd.core.turn import AckLater, Append, Message, PendingAck, Refuse
from penstock.logd.envelope import BatchPayload, encode_batch
from penstock.logd.frame import FrameHeader
from penstock.logd.frame_builder import build_frames
from penstock.logd.nats_headers import format_headers
from penstock.logd.rows import batch_records

NODE = NodeId("one")
CONFIG = StreamConfig(name="logs", subject="t.>")
Frame = tuple[FrameHeader, bytes]


@dataclass
class Producer:
    """Sends batches one after another; after a refusal it goes on from what the log has."""

    producer_id: bytes
    acked: int = 0


@dataclass
class World:
    """One process at a time, its disk, and publishers that retry what was not acked.

    Attributes:
        ack_early: The known-bad twin: acks leave when appended, not when synced.
        forget: Another one: ids and sequences are not rebuilt after a crash.
    """

    seed: int
    ack_early: bool = False
    forget: bool = False
    now_ns: int = 1_700_000_000_000_000_000
    synced: list[Frame] = field(default_factory=list)
    unsynced: list[Frame] = field(default_factory=list)
    acked: dict[bytes, int] = field(default_factory=dict)
    waiting: dict[bytes, bytes] = field(default_factory=dict)
    pending: list[PendingAck] = field(default_factory=list)
    coverage: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.producers = [Producer(bytes([n]) * 16) for n in (1, 2)]
        self.sent = 0
        self.epoch = 0
        self.start()

    def start(self) -> None:
        """Begin an epoch on what is durable."""
        self.epoch += 1
        self.unsynced, self.pending = [], []
        end = self.synced[-1][0].next_offset if self.synced else 0
        self.intake = Intake(
            CONFIG, next_offset=end, epoch=self.epoch, streams_for=lambda _: ("logs",)
        )
        self.replica = Replica(isr=[NODE], epoch=self.epoch, high_watermark=end - 1)
        if not self.forget:
            for header, body in self.synced:
                self.intake.dedup.recall_producer(header, self.now_ns)
                self.intake.dedup.recall_ids(header, decode_body(body), self.now_ns)

    def step(self) -> None:
        """One random thing happens."""
        self.now_ns += self.rng.randrange(1_000_000)
        match self.rng.choices(["arrive", "sync", "crash"], [8, 4, 1])[0]:
            case "arrive":
                self.arrive([self.message() for _ in range(self.rng.randrange(1, 5))])
            case "sync":
                self.sync()
            case _:
                self.coverage.add("crash with unsynced" if self.unsynced else "crash")
                self.start()

    def message(self) -> Message:
        """A new message, a retry, or a batch that may be new, repeated or ahead of itself."""
        if self.rng.random() < 0.4:
            return self.batch(self.rng.choice(self.producers))
        if self.waiting and self.rng.random() < 0.5:
            key = self.rng.choice(sorted(self.waiting))
            self.coverage.add("retry")
            return self.plain(key)
        self.sent += 1
        key = b"m%d" % self.sent
        self.waiting[key] = key
        return self.plain(key)

    def plain(self, key: bytes) -> Message:
        return Message(b"t.a", key, format_headers((("Nats-Msg-Id", key),)), key)

    def batch(self, producer: Producer) -> Message:
        ahead = self.rng.choice([0, 0, 0, 1, -1])
        previous = max(producer.acked + ahead, 0)
        name = b"b%d-%d" % (producer.producer_id[0], previous + 1)
        payload = BatchPayload(
            schema_version=1,
            record_count=2,
            producer_id=producer.producer_id,
            previous_sequence=previous,
            sequence=previous + 1,
            body=encode_body(build_batch([Record("t.b", name, 5), Record("t.b", name, 5)])),
        )
        return Message(b"t.b", name, b"", encode_batch(payload))

    def arrive(self, messages: list[Message]) -> None:
        for effect in self.intake.handle(Arrived(messages, 1 << 30), self.now_ns):
            match effect:
                case Append(items):
                    self.unsynced += build_frames(items, epoch=self.epoch)
                case AckLater(acks):
                    for ack in acks:
                        if isinstance(ack, PendingAck):
                            self.pending.append(ack)
                        else:
                            offsets = range(ack.base_offset, ack.release + 1)
                            pairs = zip(offsets, ack.replies, strict=True)
                            self.pending += [PendingAck(n, reply, n) for n, reply in pairs if reply]
                case Refuse(_, ack):
                    self.coverage.add(f"refused {ack.nack}")
        self.release()

    def sync(self) -> None:
        """Some prefix of what was written becomes durable."""
        count = self.rng.randrange(len(self.unsynced) + 1)
        self.synced += self.unsynced[:count]
        del self.unsynced[:count]
        if self.synced:
            upto = self.synced[-1][0].next_offset
            self.replica.handle(Synced(NODE, self.epoch, upto), self.now_ns)
        self.release()

    def release(self) -> None:
        limit = 1 << 60 if self.ack_early else self.replica.high_watermark
        while self.pending and self.pending[0].release <= limit:
            ack = self.pending.pop(0)
            if ack.duplicate:
                self.coverage.add("duplicate")
            if ack.enveloped:
                self.learn(ack.reply)
            if ack.offset >= 0:
                assert self.acked.setdefault(ack.reply, ack.offset) == ack.offset
            self.waiting.pop(ack.reply, None)

    def learn(self, name: bytes) -> None:
        number, sequence = name[1:].split(b"-")
        producer = self.producers[int(number) - 1]
        producer.acked = max(producer.acked, int(sequence))

    def check(self) -> None:
        """What was acked is durable, once, where it was said to be."""
        self.unsynced = []
        values = list(_values(self.synced))
        for name, offset in self.acked.items():
            assert offset < len(values), f"{name!r} acked and lost"
            assert values[offset] == name, f"{name!r} is not at {offset}"
        plain = [value for value in values if value.startswith(b"m")]
        assert len(plain) == len(set(plain)), "a message id is stored twice"
        for producer in self.producers:
            prefix = b"b%d-" % producer.producer_id[0]
            mine = [int(value[len(prefix) :]) for value in values if value.startswith(prefix)]
            assert mine[::2] == mine[1::2] == list(range(1, len(mine) // 2 + 1))


def _values(frames: Iterable[Frame]) -> Iterable[bytes]:
    expected = 0
    for header, body in frames:
        assert header.base_offset == expected
        for _, record in batch_records(header, decode_body(body)):
            assert record.value is not None
            yield record.value
        expected = header.next_offset


def run(seed: int, *, ack_early: bool = False, forget: bool = False) -> World:
    world = World(seed, ack_early=ack_early, forget=forget)
    for _ in range(60):
        world.step()
    world.check()
    return world


@pytest.mark.parametrize("block", range(10))
def test_every_schedule_keeps_what_was_acked(block: int) -> None:
    for seed in range(block * 50, block * 50 + 50):
        try:
            run(seed)
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}")


def test_the_schedules_reach_the_rare_cases() -> None:
    reached: set[str] = set()
    for seed in range(40):
        reached |= run(seed).coverage
    assert {
        "crash",
        "crash with unsynced",
        "retry",
        "duplicate",
        "refused Nack.SEQUENCE_GAP",
        "refused Nack.UNKNOWN_PRODUCER",
    } <= reached


@pytest.mark.parametrize("twin", ["ack_early", "forget"])
def test_a_known_bad_twin_is_caught(twin: str) -> None:
    caught = 0
    for seed in range(60):
        try:
            run(seed, **{twin: True})
        except AssertionError:
            caught += 1
    assert caught > 5
