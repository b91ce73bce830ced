"""Intake over a real commit log on a disk in memory that fails, with publishers that retry.

One seed picks everything: what is published and repeated, when the log writer writes and syncs,
when the disk is full or broken, when records are deleted, when the process or the machine dies. The
world keeps the true history and a dumb model of what a repeat is:

- what is acked is in the log where the ack said, at once, after every restart and at the end;
- a message is a duplicate exactly when the model says so, and so is a batch;
- what the log holds is what was accepted, in order, columns included;
- a publisher that waits for its acks has its messages in order.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Final

from penstock.logd.errors import LogFailedError
from penstock.logd.format.acks import Nack
from penstock.logd.format.batch import Record, build_batch, decode_body, encode_body
from penstock.logd.format.envelope import BatchPayload, encode_batch
from penstock.logd.format.headers import format_headers
from penstock.logd.format.rows import batch_records
from penstock.logd.intake.intake import Arrived, Intake, LogFailed
from penstock.logd.intake.turn import (
    AckLater,
    AckRun,
    Append,
    Message,
    MessageRun,
    PendingAck,
    PrebuiltBatch,
    Refuse,
)
from penstock.logd.metadata.retention_policy import Retention
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.partition.log_writer import Durable, build_frames
from penstock.logd.partition.producer_snapshot import ProducerSnapshot
from penstock.logd.partition.rebuild import rebuild_intake
from penstock.logd.replication.events import NodeId
from penstock.logd.storage import CommitLog, EpochFile, LogConfig
from tests.sim.disk import MemoryDisk
from tests.support.lone_replica import LoneReplica

DIRECTORY: Final = Path("/data/logs")
EPOCHS: Final = DIRECTORY / "epochs"
LOG_CONFIG: Final = LogConfig(max_segment_bytes=3000, index_interval_bytes=600, index_save_bytes=90)
NODE: Final = NodeId("one")
SECOND: Final = 1_000_000_000
CONFIG: Final = StreamConfig(
    name="logs",
    subject="t.>",
    dedup_window_s=6,
    max_dedup_entries=6,
    max_producers=2,
    retention=Retention(bytes=1 << 20),
)


@dataclass(frozen=True)
class Accepted:
    """A record that intake took, as it must be in the log.

    Attributes:
        sequence: Of the batch it came in; 0 for a plain message.
    """

    value: bytes
    time_ns: int
    message_id: bytes = b""
    producer: bytes = b""
    sequence: int = 0


@dataclass
class Publisher:
    """Sends plain messages with ids, one at a time, until each is acked."""

    name: bytes
    number: int = 1
    acked: int = 0

    @property
    def current(self) -> bytes:
        return b"%b-%d" % (self.name, self.number)


@dataclass
class Producer:
    """Sends batches ahead of the acks; after a refusal it goes on from what the log has."""

    producer_id: bytes
    sent: int = 0
    acked: int = 0


@dataclass
class IntakeWorld:
    """One run. Call `run`.

    Attributes:
        early: The known-bad twin that acks what is not synced.
        rebuild: What makes memory again after a restart; twins do it badly.
        config: What intake is given; the model keeps to `CONFIG`.
        history: Every record accepted; index is offset. What a crash takes is taken out.
        acked: Offset by reply subject.
    """

    seed: int
    early: bool = False
    rebuild: Callable[..., object] = rebuild_intake
    config: StreamConfig = CONFIG
    disk: MemoryDisk = field(default_factory=MemoryDisk)
    now_ns: int = 1_700_000_000 * SECOND
    history: list[Accepted] = field(default_factory=list)
    acked: dict[bytes, int] = field(default_factory=dict)
    reached: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.publishers = [Publisher(b"a"), Publisher(b"b"), Publisher(b"c")]
        self.producers = [Producer(bytes([n]) * 16) for n in range(1, 5)]
        self.sends = 0
        self.items: list[MessageRun | PrebuiltBatch] = []
        self.log: CommitLog
        self.disk.make_directory(DIRECTORY.parent)
        self.restart()

    def run(self, steps: int) -> None:
        """Take random steps, then lose power and look at everything."""
        actions: list[tuple[Callable[[], None], int]] = [
            (self.arrive, 50),
            (self.write, 12),
            (self.sync, 25),
            (self.delete, 4),
            (self.kill, 2),
            (self.lose_power, 3),
            (self.fill_up, 1),
            (self.break_disk, 2),
            (self.wait, 3),
        ]
        for action in self.random.choices(
            [action for action, _ in actions], [weight for _, weight in actions], k=steps
        ):
            self.now_ns += self.random.randrange(SECOND)
            try:
                action()
            except LogFailedError:
                self.fail()
        self.lose_power()

    # Steps.

    def arrive(self) -> None:
        """One turn brings some messages; the model is asked before intake is."""
        if self.failed and self.random.random() < 0.3:
            self.restart()
        messages = [self.message() for _ in range(self.random.randrange(1, 5))]
        effects = self.intake.handle(Arrived(messages, 1 << 30), self.now_ns)
        refused = {each.reply: each.ack.nack for each in effects if isinstance(each, Refuse)}
        offsets: dict[bytes, PendingAck] = {}
        for effect in effects:
            match effect:
                case Append(items):
                    self.items += items
                case AckLater(acks):
                    self.pending += [one for ack in acks for one in _singles(ack)]
                    offsets |= {one.reply: one for ack in acks for one in _singles(ack)}
                case Refuse(reply, ack):
                    self.reached.add(f"refused {ack.nack}")
                    self.refused(reply, ack.sequence)
        for message in messages:
            self.judge(message, refused.get(message.reply), offsets.get(message.reply))
        assert self.intake.next_offset == len(self.history)
        self.release()

    def write(self) -> None:
        """The log writer appends what it was handed; nothing is durable yet."""
        items, self.items = self.items, []
        if items and not self.failed:
            self.log.append(list(build_frames(items, epoch=self.replica.epoch)))

    def sync(self) -> None:
        self.write()
        if not self.failed:
            self.replica.settle(Durable(self.log.sync()), self.now_ns)
            self.release()

    def delete(self) -> None:
        """Retention: memory is written down before any record goes."""
        memory = ProducerSnapshot.of(self.intake)
        self.sync()
        if self.failed:
            return
        with suppress(OSError):  # the disk is broken, and nothing goes
            memory.save(DIRECTORY, disk=self.disk)
            self.log.roll()
            committed = min(memory.offset, self.replica.high_watermark + 1)
            before = self.log.start_offset
            if self.log.delete_before(self.random.randint(0, committed)) > before:
                self.reached.add("deleted")

    def kill(self) -> None:
        """The process dies, the machine does not."""
        self.restart()

    def lose_power(self) -> None:
        if self.log.end_offset > self.log.synced_offset:
            self.reached.add("power lost with something unsynced")
        self.disk.crash(self.random)
        self.restart()

    def fill_up(self) -> None:
        self.disk.free_bytes = self.random.randrange(2000)

    def break_disk(self) -> None:
        chance = self.random.choice((0.05, 0.5))
        broken = self.random.choice(("write", "sync"))
        self.disk.fail = lambda operation, _: operation == broken and self.random.random() < chance

    def wait(self) -> None:
        """Long enough for ids to be forgotten, sometimes."""
        self.now_ns += self.random.randrange(8) * SECOND

    # Parts.

    def restart(self) -> None:
        """Recover the log, look at it, and rebuild what intake remembers."""
        self.disk.fail = lambda _operation, _path: False
        self.disk.free_bytes = 1 << 60
        self.failed = False
        self.items = []
        self.pending: list[PendingAck] = []
        self.log = CommitLog.open(DIRECTORY, LOG_CONFIG, disk=self.disk, now_ns=lambda: self.now_ns)
        self.check()
        end = self.log.end_offset
        self.replica = LoneReplica(NODE, "1", self.log, EpochFile(EPOCHS, disk=self.disk))
        self.intake = Intake(
            self.config, next_offset=end, epoch=self.replica.epoch, streams_for=lambda _: ("logs",)
        )
        self.rebuild(self.intake, self.log, self.now_ns)

    def fail(self) -> None:
        """What the partition does when its log writer fails; the log may hold what was accepted."""
        self.reached.add("disk failed")
        self.failed = True
        self.intake.handle(LogFailed("the disk"), self.now_ns)
        self.pending = []
        self.items = []

    def check(self) -> None:
        """The log holds what was accepted, and everything acked."""
        assert self.log.recovery.damages == []
        start, end = self.log.start_offset, self.log.end_offset
        lost = [name for name, offset in self.acked.items() if offset >= end]
        assert lost == [], f"acked and lost: {lost}"
        del self.history[end:]
        found = [
            (offset, record.value, record.timestamp_ns)
            for header, body in self.log.frames(start)
            for offset, record in batch_records(header, decode_body(body))
        ]
        assert found == [
            (offset, self.history[offset].value, self.history[offset].time_ns)
            for offset in range(start, end)
        ]
        for publisher in self.publishers:
            prefix = publisher.name + b"-"
            ids = [one.message_id for one in self.history if one.message_id.startswith(prefix)]
            mine = dict.fromkeys(ids)  # what is repeated after the window is stored again
            numbers = [int(message_id[len(prefix) :]) for message_id in mine]
            assert numbers == sorted(numbers), f"{publisher.name!r} is out of order"

    def message(self) -> Message:
        """The reply subject names the message: who sent it, what, and which attempt."""
        self.sends += 1
        if self.random.random() < 0.3:
            return self.batch(self.random.choice(self.producers))
        publisher = self.random.choice(self.publishers)
        if self.random.random() < 0.2:
            return Message(b"t.a", b"plain.%d" % self.sends, b"", b"v%d" % self.sends)
        name = publisher.current
        if publisher.acked and self.random.random() < 0.2:  # an ack was lost, long ago or just now
            name = b"%b-%d" % (publisher.name, self.random.randint(max(1, publisher.acked - 4),
                                                                   publisher.acked))  # fmt: skip
        headers = format_headers((("Nats-Msg-Id", name), ("Other", b"o")))
        return Message(b"t.a", b"%b.%d" % (name, self.sends), headers, b"value of " + name)

    def batch(self, producer: Producer) -> Message:
        if self.random.random() < 0.2:
            producer.sent = producer.acked  # it lost patience
        if self.random.random() < 0.1:
            producer.sent += 1  # NATS lost one
        previous = producer.sent
        producer.sent += 1
        name = b"batch-%d-%d-%d" % (producer.producer_id[0], previous, producer.sent)
        payload = BatchPayload(
            schema_version=1,
            record_count=2,
            producer_id=producer.producer_id,
            previous_sequence=previous,
            sequence=producer.sent,
            body=encode_body(build_batch([Record("t.b", name, 5), Record("t.b", name, 6)])),
        )
        return Message(b"t.b", b"%b.%d" % (name, self.sends), b"", encode_batch(payload))

    def judge(self, message: Message, nack: Nack | None, ack: PendingAck | None) -> None:
        """Hold intake's decision against the model, and write down what it took."""
        name = message.reply.rpartition(b".")[0]
        if self.failed:
            assert nack is Nack.STORAGE_FAILED
        elif name.startswith(b"batch-"):
            number, previous, sequence = map(int, name.split(b"-")[1:])
            producer = bytes([number]) * 16
            last = self.producers_model().get(producer, 0)
            if previous == last:
                assert (nack, ack is not None and ack.duplicate) == (None, False), f"{name!r}: next"
                for time_ns in (5, 6):
                    self.history.append(Accepted(name, time_ns, b"", producer, sequence))
            elif sequence <= last:
                assert ack is not None and ack.duplicate, f"{name!r} is a duplicate"  # noqa: PT018
                self.reached.add("duplicate batch")
            else:
                assert nack is (Nack.SEQUENCE_GAP if last else Nack.UNKNOWN_PRODUCER)
        else:
            message_id = name if b"-" in name else b""
            known = self.ids_model().get(message_id)
            assert nack is None
            assert ack is not None
            assert ack.duplicate == (known is not None), f"{name!r}: known at {known}"
            if known is None:
                self.history.append(Accepted(message.payload, self.now_ns, message_id))
            else:
                assert ack.offset == known
                self.reached.add("duplicate")

    def ids_model(self) -> dict[bytes, int]:
        """Offset by id of what is a duplicate now."""
        entries: OrderedDict[bytes, int] = OrderedDict()
        for offset, record in enumerate(self.history):
            if record.message_id:
                entries[record.message_id] = offset
                entries.move_to_end(record.message_id)
        newest = list(entries.items())[-CONFIG.max_dedup_entries :]
        limit = self.now_ns - CONFIG.dedup_window_s * SECOND
        if len(newest) < len(entries):
            self.reached.add("ids evicted")
        return {name: offset for name, offset in newest if self.history[offset].time_ns >= limit}

    def producers_model(self) -> dict[bytes, int]:
        """Last sequence by producer, of those that are remembered."""
        entries: OrderedDict[bytes, int] = OrderedDict()
        for record in self.history:
            if record.sequence:
                entries[record.producer] = record.sequence
                entries.move_to_end(record.producer)
        if len(entries) > CONFIG.max_producers:
            self.reached.add("producers evicted")
        return dict(list(entries.items())[-CONFIG.max_producers :])

    def release(self) -> None:
        limit = 1 << 60 if self.early else self.replica.high_watermark
        while self.pending and self.pending[0].release <= limit:
            ack = self.pending.pop(0)
            name = ack.reply.rpartition(b".")[0]
            if ack.offset >= 0:
                assert self.history[ack.offset].value.endswith(name) or name == b"plain"
                self.acked[ack.reply] = ack.offset
            self.note_ack(name)

    def note_ack(self, name: bytes) -> None:
        kind, *rest = name.split(b"-")
        for publisher in self.publishers:
            if publisher.current == name:
                publisher.acked = publisher.number
                publisher.number += 1
        if kind == b"batch":
            producer = self.producers[int(rest[0]) - 1]
            producer.acked = max(producer.acked, int(rest[2]))

    def refused(self, reply: bytes, sequence: int | None) -> None:
        if reply.startswith(b"batch-") and sequence is not None:
            producer = self.producers[int(reply.split(b"-")[1]) - 1]
            producer.sent = producer.acked = sequence


def _singles(ack: PendingAck | AckRun) -> Sequence[PendingAck]:
    if isinstance(ack, PendingAck):
        return [ack]
    offsets = range(ack.base_offset, ack.release + 1)
    pairs = zip(offsets, ack.replies, strict=True)
    return [PendingAck(ack.release, reply, offset) for offset, reply in pairs if reply]


def with_options(**options: int) -> StreamConfig:
    """The configuration of a twin that counts wrongly."""
    return replace(CONFIG, **options)  # type: ignore[arg-type]
