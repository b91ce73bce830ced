"""One turn of a partition: what came in, and what it amounts to."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec import Struct, field

from penstock.logd.format.acks import PubAck
from penstock.logd.format.frame import FrameHeader
from penstock.logd.format.headers import Pairs
from penstock.logd.limits import FRAME_BYTES_MAX, FRAME_ROWS_MAX

RECORD_OVERHEAD: Final = 128
"""Bytes an accepted message takes besides its payload, headers, subject and reply: an upper bound
of what it adds to a frame, and roughly what it holds in memory."""

FRAME_OVERHEAD: Final = 1024
"""Bytes a frame of plain messages takes besides them: an upper bound of its header and metadata."""

OFFSET_MAX: Final = 2**63 - 1
"""No record has this offset."""


class Message(NamedTuple):
    """A NATS message as it came; `reply` and `headers` are empty where it has none."""

    subject: bytes
    reply: bytes
    headers: bytes
    payload: bytes

    def size_bytes(self) -> int:
        """An upper bound of what it adds to a frame; each header line can double there."""
        subject, reply, headers, payload = self
        return len(payload) + 3 * len(headers) + len(subject) + len(reply) + RECORD_OVERHEAD


class RowExtras(NamedTuple):
    """The parts of a plain message's row that come from its headers.

    Attributes:
        headers: The stored headers.
        tombstone: Whether its value is null.
    """

    headers: Pairs | None
    key: bytes | None = None
    tombstone: bool = False


class MessageRun(Struct):
    """Plain messages at consecutive offsets, to become rows of one frame.

    Attributes:
        extras: Extras of messages with headers, by position in `messages`.
        size: Bytes it holds in memory, roughly.
    """

    base_offset: int
    timestamp_ns: int
    messages: list[Message] = field(default_factory=list)
    extras: dict[int, RowExtras] = field(default_factory=dict)
    size: int = FRAME_OVERHEAD

    @property
    def full(self) -> bool:
        """True if the next message needs another frame."""
        return self.size >= FRAME_BYTES_MAX or len(self.messages) >= FRAME_ROWS_MAX

    @property
    def next_offset(self) -> int:
        """The offset after the last message."""
        return self.base_offset + len(self.messages)


class PrebuiltBatch(Struct, frozen=True):
    """A producer's batch, placed."""

    header: FrameHeader
    body: bytes

    @property
    def next_offset(self) -> int:
        """The offset after the last record."""
        return self.header.next_offset


class PendingAck(NamedTuple):
    """An ack to send once the high watermark is at `release` or above.

    Attributes:
        offset: Offset of the record, or of a batch's last; -1 when it is no longer known.
        records: Number of records; 1 for a plain message.
        enveloped: Whether the publisher sent an envelope and is answered in one.
        here: Whether it is enough that the leader has it durable (ack policy `leader`).
        form: First bytes of the ack of a publish envelope.
    """

    release: int
    reply: bytes
    offset: int
    records: int = 1
    duplicate: bool = False
    enveloped: bool = False
    here: bool = False
    form: bytes = b""


class AckRun(NamedTuple):
    """Acks of plain messages at consecutive offsets, to send as `PendingAck`s are, at once.

    Attributes:
        replies: Reply subjects from `base_offset` on; empty where no ack is sent.
    """

    release: int
    base_offset: int
    replies: list[bytes]
    here: bool = False


Ack = PendingAck | AckRun


def ack_count(ack: Ack) -> int:
    """Return how many publishers are answered."""
    return len(ack.replies) - ack.replies.count(b"") if isinstance(ack, AckRun) else 1


class Append(Struct, frozen=True):
    """Write these, in order. `size_bytes` is what they hold in memory."""

    items: list[MessageRun | PrebuiltBatch]
    size_bytes: int


class AckLater(Struct, frozen=True):
    """Send these as the high watermark passes; `release` rises along the list."""

    acks: list[Ack]


class Refuse(Struct, frozen=True):
    """Tell a publisher now that its message is not stored; `form` as in `PendingAck`."""

    reply: bytes
    ack: PubAck
    enveloped: bool
    form: bytes = b""


Effect = Append | AckLater | Refuse


class EventLoopBatch(Struct):
    """Messages of one turn of the event loop.

    Attributes:
        room: Bytes that may still be accepted, in a frame that a message may have to begin.
        spare: Bytes the daemon has room for beyond those, but the stream has not.
        offset_max: The stream has room for records below this offset.
        here: Whether runs are acked as soon as the leader has them.
        replies: Reply subjects of the current run, by position.
    """

    now_ns: int
    room: int
    spare: int = 0
    offset_max: int = OFFSET_MAX
    here: bool = False
    size: int = 0
    run: MessageRun | None = None
    items: list[MessageRun | PrebuiltBatch] = field(default_factory=list)
    replies: list[bytes] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    refusals: list[Refuse] = field(default_factory=list)

    def stretch(self) -> tuple[int, int]:
        """Return how many bytes and how many plain messages `put` accepts at once."""
        run = self.run
        if run is None:
            return min(self.room, FRAME_BYTES_MAX) - FRAME_OVERHEAD, FRAME_ROWS_MAX
        return min(self.room, FRAME_BYTES_MAX - run.size), FRAME_ROWS_MAX - len(run.messages)

    def put(
        self,
        messages: Sequence[Message],
        replies: list[bytes],
        size: int,
        offset: int,
        extras: RowExtras | None = None,
    ) -> None:
        """Put plain messages at the next offset, into the run under way if they may.

        Args:
            messages: Those that `stretch` has room for, or one.
            replies: Reply subjects; empty for messages without one.
            size: The sum of the messages' sizes.
            offset: The next offset.
            extras: Extras of the only message.
        """
        run = self.run
        if run is not None and run.full:
            self.end_run()
            run = None
        if run is None:
            run = self.run = MessageRun(offset, self.now_ns)
            self.items.append(run)
            self.room -= run.size
            self.size += run.size
        if extras is not None:
            run.extras[len(run.messages)] = extras
        run.messages += messages
        run.size += size
        self.replies += replies
        self.room -= size
        self.size += size

    def put_whole(self, whole: PrebuiltBatch, size: int) -> None:
        """Put a producer's batch at the next offset."""
        self.end_run()
        self.items.append(whole)
        self.room -= size
        self.size += size

    def end_run(self) -> None:
        """Let what follows begin another run."""
        if self.run is not None and any(self.replies):
            last = self.run.next_offset - 1
            self.acks.append(AckRun(last, self.run.base_offset, self.replies, self.here))
        self.run = None
        self.replies = []

    def effects(self) -> list[Effect]:
        """End the turn. Refusals come first: they wait for nothing."""
        self.end_run()
        effects: list[Effect] = [*self.refusals]
        if self.items:
            effects.append(Append(self.items, self.size))
        if self.acks:
            effects.append(AckLater(self.acks))
        return effects
