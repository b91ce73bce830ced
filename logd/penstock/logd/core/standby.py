"""What a replica that does not lead has heard, and its leader may have missed.

The window holds every message that arrived and is not known to be in the log. A record that the
replica appends cancels one message of its identity (`penstock.logd.core.identity`); one that comes
before its message leaves a debt, which cancels the message when that comes. Whoever becomes the
leader takes what is left, first come first served, and then what arrives.

    arrived, not in the log      held
    arrived, in the log          matched, until the record is committed; if it is cut off: held
    in the log, not arrived      owed, for `debt_ns`

For messages with an id, and batches, there are no debts: what is remembered of the log says whether
it has them, and a leader stores none twice. Equal messages without an id are counted. Where the
count cannot be right, one too many is preferred to one too few: a debt lives for a short time, and
what the leader took before this replica heard everything leaves none. By how much before is said
with `debt_ns`, too: clocks differ, and what is under way just then may come both ways.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, NamedTuple

from penstock.logd.core.gaps import Instant
from penstock.logd.core.identity import is_exact
from penstock.logd.core.turn import OFFSET_MAX, Message

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
