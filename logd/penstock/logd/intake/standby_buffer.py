"""What a replica that does not lead has heard, and its leader may have missed.

The window holds every message that arrived and is not known to be in the log. A record that the
replica appends cancels one message of its identity (`penstock.logd.intake.standby_buffer`); one
that comes before its message leaves a debt, which cancels the message when that comes. Whoever
becomes the leader takes what is left, first come first served, and then what arrives.

    arrived, not in the log      held
    arrived, in the log          matched, until the record is committed; if it is cut off: held
    in the log, not arrived      owed, for `debt_ns`

For messages with an id, and batches, there are no debts: what is remembered of the log says whether
it has them, and a leader stores none twice. Equal messages without an id are counted. Where the
count cannot be right, one too many is preferred to one too few: a debt lives for a short time, and
what the leader took before this replica heard everything leaves none. By how much before is said
with `debt_ns`, too: clocks differ, and what is under way just then may come both ways.

What tells one message from another, as it arrives and as a record of the log.

A standby compares what it heard with what the leader stored. A message with an id, or a producer's
batch, is what it says it is. Any other is what it consists of: subject, key, stored headers and
value, taken together in a digest, so that two equal messages have one identity and are counted.

    b"i" id                      a `Nats-Msg-Id`, where the stream remembers ids
    b"b" producer sequence       16 and 8 bytes, of a batch
    b"c" digest                  BLAKE2b of 16 bytes, of the content
"""

import hashlib
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, NamedTuple

import pyarrow as pa

from penstock.logd.errors import CorruptError
from penstock.logd.format.envelope import COOKIE, TYPE_BATCH, decode_batch, decode_envelope
from penstock.logd.format.frame import FrameHeader
from penstock.logd.format.headers import Pairs
from penstock.logd.intake.dedup import Dedup
from penstock.logd.intake.gaps import Instant
from penstock.logd.intake.intake import read_headers, refuse_subjects
from penstock.logd.intake.options import (
    Refusal,
    named_stream,
    read_options,
    read_unanswered,
    stored_message_id,
)
from penstock.logd.intake.turn import OFFSET_MAX, Message
from penstock.logd.metadata.streams import StreamConfig

_ID: Final = b"i"
_BATCH: Final = b"b"
_CONTENT: Final = b"c"


def is_exact(identity: bytes) -> bool:
    """Whether no two messages that are to be stored have it."""
    return not identity.startswith(_CONTENT)


def identify(message: Message, config: StreamConfig) -> bytes | None:
    """The identity of a message that nobody sends again if it is missed.

    Returns:
        None for one that is answered, for then its publisher knows, and for one that every leader
        refuses.
    """
    subject, reply, _, payload = message
    if refuse_subjects(message) is not None:
        return None
    pairs = read_headers(
        message, 0, config, size_max=config.message_bytes_max, room=config.message_bytes_max
    )
    if isinstance(pairs, Refusal):
        return None
    asked = named_stream(pairs) in (None, config.name)
    if payload.startswith(COOKIE):
        identity = _identify_batch(payload)
        if identity is not None:
            return None if reply and asked else identity
    if pairs:
        return _identify_with_headers(message, pairs, config, asked=asked)
    if reply and _answers(config):
        return None
    return _digest(subject, payload)


def identities(
    header: FrameHeader, batch: pa.RecordBatch, config: StreamConfig
) -> Iterator[tuple[int, bytes]]:
    """Offset and identity of a frame's records, as `identify` gave them when they arrived.

    A batch is one message, whose offset is that of its last record. Records of messages that are
    answered are left out. A frame that compaction has made does not say what it was made of.
    """
    if header.compacted:
        return
    if header.producer_sequence:
        yield header.last_offset, _batch_identity(header.producer_id, header.producer_sequence)
        return
    answers = _answers(config)
    columns = [batch.column(name) for name in ("subject", "key", "headers", "reply", "value")]
    # Most frames have neither keys nor headers, and a list of nothing costs as much as any other.
    rows = zip(
        *(
            [None] * batch.num_rows if column.null_count == batch.num_rows else column.to_pylist()
            for column in columns
        ),
        strict=True,
    )
    for offset, (subject, key, pairs, reply, value) in enumerate(rows, header.base_offset):
        if reply and answers:
            continue
        message_id = stored_message_id(pairs) if pairs and config.dedup_window_s else None
        if message_id is not None:
            yield offset, _ID + message_id
        else:
            yield offset, _digest(subject.encode(), value, key, tuple(pairs or ()))


def stored_offset(identity: bytes, dedup: Dedup, now_ns: int) -> int | None:
    """Where a message is in the log by what is remembered of it; None: it is not known to be.

    Args:
        identity: An exact one.
        dedup: What the log's replica remembers.
        now_ns: Unix time.

    Returns:
        -1 if only so much is known that it was stored.
    """
    if identity.startswith(_ID):
        return dedup.message_ids.offset(identity[1:], now_ns)
    state = dedup.producers.last(identity[1:17])
    sequence = int.from_bytes(identity[17:], "little")
    if state is None or state.sequence < sequence:
        return None
    return state.offset if state.sequence == sequence else -1


def _answers(config: StreamConfig) -> bool:
    """Whether plain messages with a reply subject are answered."""
    return config.ack_on_reply and config.ack_policy != "none"


def _identify_batch(payload: bytes) -> bytes | None:
    """As a batch; None: it is a plain message that begins like one, or refused."""
    try:
        envelope = decode_envelope(payload)
        if envelope is None or envelope.type != TYPE_BATCH:
            return None
        batch = decode_batch(envelope.payload)
    except CorruptError:
        return None
    return _batch_identity(batch.producer_id, batch.sequence)


def _batch_identity(producer_id: bytes, sequence: int) -> bytes:
    return _BATCH + producer_id + sequence.to_bytes(8, "little")


def _identify_with_headers(
    message: Message, pairs: Pairs, config: StreamConfig, *, asked: bool
) -> bytes | None:
    """The identity of a message with headers; `asked`: it does not name another stream."""
    subject, reply, _, payload = message
    if asked and config.ack_on_reply:
        options = read_options(pairs, key_bytes_max=config.key_bytes_max)
        if isinstance(options, Refusal) or (options.tombstone and payload):
            return None
        if reply and _answers(config):
            return None
    else:
        most = config.key_bytes_max
        options = read_unanswered(pairs, key_bytes_max=most, tombstones=not payload)
    if options.message_id is not None and config.dedup_window_s:
        return _ID + options.message_id
    value = None if options.tombstone else payload
    return _digest(subject, value, options.key, options.stored(pairs))


def _digest(
    subject: bytes, value: bytes | None, key: bytes | None = None, pairs: Pairs = ()
) -> bytes:
    """Of parts with their lengths, so that no two contents run together to the same bytes."""
    if key is None and not pairs and value is not None:
        digest = hashlib.blake2b(b"%d %b" % (len(subject), subject), digest_size=16)
        digest.update(value)
        return _CONTENT + digest.digest()
    parts = [subject, b"" if key is None else b"k" + key, b"-" if value is None else b"v" + value]
    for name, content in pairs:
        parts += (name.encode(), content)
    digest = hashlib.blake2b(b"+", digest_size=16)
    for part in parts:
        digest.update(b"%d " % len(part))
        digest.update(part)
    return _CONTENT + digest.digest()


ENTRY_BYTES: Final = 384
"""Bytes that a message takes here besides what it is made of, roughly; also without that."""

DEBT_BYTES: Final = 320
"""Bytes that a debt takes, roughly."""


@dataclass(slots=True)
class StandbyCounts:
    """Messages since the stream stands by here.

    arrived + returned = cancelled + released + expired + lost + those that are held.

    Attributes:
        arrived: Came, and nobody will send them again.
        returned: Were cancelled by records that were cut off again.
        cancelled: Were found in the log, or are held already.
        released: Were handed to the intake as this node became the leader.
        expired: Were held for too long: as a rule since a leader had refused them.
        lost: Had no room.
        overflowed: Had no room: that they came is known still, until they are cancelled or lost.
        debts_expired: Records whose messages never came.
    """

    arrived: int = 0
    returned: int = 0
    cancelled: int = 0
    released: int = 0
    expired: int = 0
    lost: int = 0
    overflowed: int = 0
    debts_expired: int = 0


class Released(NamedTuple):
    """What a new leader takes.

    Attributes:
        messages: In the order of their arrival.
        missing: How many more there were, that had no room or were held for too long.
        missing_ns: When the last of those arrived.
    """

    messages: list[Message]
    missing: int
    missing_ns: int


@dataclass(slots=True)
class _Heard:
    """A message that arrived; None: there was no room for it."""

    identity: bytes
    arrived_ns: int
    message: Message | None
    size: int


@dataclass(slots=True, eq=False)
class _Debt:
    """A record whose message has not come; offset None: nothing is owed any more."""

    identity: bytes
    offset: int | None
    until_ns: int


@dataclass(slots=True)
class Window:
    """Of one partition on one node. Times are of the node's monotonic clock, unless they say else.

    Args:
        age_ns: How long a message is held at most.
        debt_ns: How long a record waits for its message.

    Attributes:
        held_bytes_max: What may be held here; set by the owner, and kept to as something arrives.
        held_bytes: Held here, roughly.
        covered: Since when everything published arrives here; None: it does not.
    """

    age_ns: int
    debt_ns: int
    held_bytes_max: int = 0
    held_bytes: int = 0
    covered: Instant | None = None
    counts: StandbyCounts = field(default_factory=StandbyCounts)
    _held: OrderedDict[int, _Heard] = field(default_factory=OrderedDict)
    _shells: OrderedDict[int, _Heard] = field(default_factory=OrderedDict)
    _orders: dict[bytes, deque[int]] = field(default_factory=dict)
    _matched: list[tuple[int, int, _Heard]] = field(default_factory=list)
    _debts: dict[bytes, deque[_Debt]] = field(default_factory=dict)
    _debts_by_age: deque[_Debt] = field(default_factory=deque)
    _arrivals: int = 0
    _committed: int = -1
    _end: int = OFFSET_MAX
    _lapsed: int = 0
    _lapsed_ns: int = -1
    _let_go: int = 0
    _let_go_upto: int = -1

    def __len__(self) -> int:
        """Messages held, and those that had no room and are not cancelled yet."""
        return len(self._held) + len(self._shells)

    @property
    def owing(self) -> bool:
        """Whether there are debts."""
        return bool(self._debts)

    def present(self, now: Instant | None) -> None:
        """Everything published arrives from now on, or (None) it does not any more."""
        if now is None or self.covered is None:
            self.covered = now

    def arrive(
        self, message: Message, identity: bytes, now_ns: int, *, known: int | None = None
    ) -> None:
        """Take a message while another node leads, or nobody does.

        Args:
            message: As it came.
            identity: Of it.
            now_ns: The time.
            known: Offset of an exact one that is in the log; -1: it was committed long ago.
        """
        exact = is_exact(identity)
        self.counts.arrived += 1
        if exact and identity in self._orders:
            self.counts.cancelled += 1  # a leader would take it for a repeat
            return
        if known is not None and known >= self._end:
            known = None  # it has been cut off since
        heard = _Heard(identity, now_ns, message, ENTRY_BYTES + message.size_bytes())
        offset = known if exact else self._pay(identity, now_ns)
        self._arrivals += 1
        if offset is None:
            self._hold(self._arrivals, heard)
        else:
            self.counts.cancelled += 1
            self._match(offset, self._arrivals, heard)
        self._make_room()

    def pay(self, message: Message, identity: bytes, now_ns: int) -> bool:
        """Whether a message that comes to a leader here is one that the log has already."""
        offset = self._pay(identity, now_ns)
        if offset is None:
            return False
        self.counts.arrived += 1
        self.took(offset, message, identity, now_ns)
        return True

    def append(self, offset: int, identity: bytes, now_ns: int, *, recorded_ns: int) -> None:
        """Take a record that the log gets from its leader.

        Args:
            offset: Of it.
            identity: Of its message.
            now_ns: The time.
            recorded_ns: Unix time when the leader took it, by the leader's clock.
        """
        if self._end != OFFSET_MAX:
            self._end = max(self._end, offset + 1)
        covered = self.covered
        early = covered is None or recorded_ns < covered.unix_ns - self.debt_ns
        orders = self._orders.get(identity)
        if orders:
            # What was taken before says nothing of an equal message that has come since.
            arrived_ns = self._at(orders[0]).arrived_ns
            if not early or covered is None or arrived_ns < covered.monotonic_ns:
                order = orders[0]
                self.counts.cancelled += 1
                self._match(offset, order, self._take_out(order))
                return
        if not early and not is_exact(identity):
            debt = _Debt(identity, offset, now_ns + self.debt_ns)
            self._debts.setdefault(identity, deque()).append(debt)
            self._debts_by_age.append(debt)
            self.held_bytes += DEBT_BYTES
            self._make_room()

    def took(self, offset: int, message: Message, identity: bytes, now_ns: int) -> None:
        """Take what came to this node as the leader, and is in its log."""
        self.counts.cancelled += 1
        self._arrivals += 1
        heard = _Heard(identity, now_ns, message, ENTRY_BYTES + message.size_bytes())
        self._match(offset, self._arrivals, heard)
        self._make_room()

    def committed(self, high_watermark: int) -> None:
        """Nothing up to there will be cut off."""
        self._committed = max(self._committed, high_watermark)
        matched = self._matched
        while matched and matched[0][0] <= high_watermark:
            self.held_bytes -= heappop(matched)[2].size
        if high_watermark >= self._let_go_upto:
            self._let_go = 0

    def cut(self, end_offset: int, now_ns: int) -> None:
        """The log ends there now: what was cut off is not in it any more."""
        self._end = end_offset
        self._committed = min(self._committed, end_offset - 1)
        if self._let_go and end_offset <= self._let_go_upto:
            self._lapsed, self._lapsed_ns = self._lapsed + self._let_go, now_ns
            self._let_go = 0
        for debt in self._debts_by_age:
            if debt.offset is not None and debt.offset >= end_offset:
                self._drop_debt(debt)
        back = [entry for entry in self._matched if entry[0] >= end_offset]
        if not back:
            return
        self._matched = sorted(entry for entry in self._matched if entry[0] < end_offset)
        self.counts.returned += len(back)
        found = {**self._shells, **self._held, **{order: heard for _, order, heard in back}}
        self.held_bytes -= sum(heard.size for heard in found.values())
        self._empty()
        for order, heard in sorted(found.items()):
            self._hold(order, heard)

    def expire(self, now_ns: int, led_ns: int) -> None:
        """Let go of what has been here too long.

        Args:
            now_ns: The time.
            led_ns: When a leader was known to lead last: it has seen what had arrived before.
        """
        if led_ns >= self._lapsed_ns:
            self._lapsed = 0
        for found in (self._shells, self._held):
            while found:
                order, heard = next(iter(found.items()))
                if heard.arrived_ns + self.age_ns > now_ns:
                    break
                self.counts.expired += 1
                self._take_out(order)
                if heard.arrived_ns > led_ns:
                    self._lapse(heard)
        queue = self._debts_by_age
        while queue and (queue[0].offset is None or queue[0].until_ns <= now_ns):
            debt = queue.popleft()
            if debt.offset is not None:
                self.counts.debts_expired += 1
                self._drop_debt(debt)

    def release(self, now_ns: int, led_ns: int) -> Released:
        """This node leads: give what the log does not have.

        Args:
            now_ns: The time.
            led_ns: When another one was known to lead last.
        """
        self.expire(now_ns, led_ns)
        for heard in self._shells.values():
            self.counts.lost += 1
            self._lapse(heard)
        messages = [heard.message for heard in self._held.values() if heard.message is not None]
        found = [*self._shells.values(), *self._held.values()]
        self.held_bytes -= sum(heard.size for heard in found)
        self.counts.released += len(messages)
        released = Released(messages, self._lapsed, self._lapsed_ns)
        self._lapsed = 0
        self._empty()
        return released

    # Parts.

    def _hold(self, order: int, heard: _Heard) -> None:
        (self._shells if heard.message is None else self._held)[order] = heard
        self._orders.setdefault(heard.identity, deque()).append(order)
        self.held_bytes += heard.size

    def _at(self, order: int) -> _Heard:
        return self._held.get(order) or self._shells[order]

    def _take_out(self, order: int) -> _Heard:
        heard = self._held.pop(order, None) or self._shells.pop(order)
        orders = self._orders[heard.identity]
        orders.remove(order)  # as a rule the first
        if not orders:
            del self._orders[heard.identity]
        self.held_bytes -= heard.size
        return heard

    def _empty(self) -> None:
        self._held.clear()
        self._shells.clear()
        self._orders.clear()

    def _match(self, offset: int, order: int, heard: _Heard) -> None:
        if offset > self._committed:
            heappush(self._matched, (offset, order, heard))
            self.held_bytes += heard.size

    def _make_room(self) -> None:
        """Give up first what is in the log, then all of a message but that there was one."""
        if self.held_bytes > self.held_bytes_max and self._matched:
            self._let_go += len(self._matched)
            self._let_go_upto = max(self._let_go_upto, max(self._matched)[0])
            self.held_bytes -= sum(heard.size for _, _, heard in self._matched)
            self._matched.clear()
        while self.held_bytes > self.held_bytes_max and self._held:
            order, heard = self._held.popitem(last=False)
            self.counts.overflowed += 1
            self.held_bytes -= heard.size - ENTRY_BYTES
            heard.message, heard.size = None, ENTRY_BYTES
            self._shells[order] = heard
        while self.held_bytes > self.held_bytes_max and self._debts_by_age:
            debt = self._debts_by_age.popleft()
            if debt.offset is not None:
                self._drop_debt(debt)
        while self.held_bytes > self.held_bytes_max and self._shells:
            self.counts.lost += 1
            self._lapse(self._take_out(next(iter(self._shells))))

    def _lapse(self, heard: _Heard) -> None:
        """It may be missing, unless a leader turns out to have seen it."""
        self._lapsed += 1
        self._lapsed_ns = max(self._lapsed_ns, heard.arrived_ns)

    def _pay(self, identity: bytes, now_ns: int) -> int | None:
        """Settle the oldest debt of an identity; its offset, or None."""
        debts = self._debts.get(identity)
        while debts:
            debt = debts[0]
            offset = debt.offset
            self._drop_debt(debt)
            if debt.until_ns > now_ns:
                return offset
            self.counts.debts_expired += 1
        return None

    def _drop_debt(self, debt: _Debt) -> None:
        """Its place by age is left to `expire`."""
        debts = self._debts[debt.identity]
        debts.remove(debt)
        if not debts:
            del self._debts[debt.identity]
        debt.offset = None
        self.held_bytes -= DEBT_BYTES
