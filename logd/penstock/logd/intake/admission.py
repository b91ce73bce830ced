"""Admission: what may wait for the disk, whether that has space, when a full stream leaves NATS.

A stream that refuses messages for lack of room again and again leaves its subject, so that its
publishers see "no responders" at once, and comes back when it has drained. It never leaves before
refusals have gone on for `unsubscribe_after_ns`, and never comes back within `resubscribe_after_ns`
or before it has drained well below what made it leave: it cannot flap.
"""

from enum import Enum
from typing import Final

from msgspec import Struct

from penstock.logd.format.acks import Nack
from penstock.logd.intake.options import Refusal

_CALM_NS: Final = 1_000_000_000
"""Nanoseconds without a refusal after which refusals count as over."""

_STREAM_LOW: Final = 0.5
_TOTAL_LOW: Final = 0.75
"""Maximum share of the total budget in use when a stream returns. It is higher than the first
because what the other streams hold need not concern this one."""


class AdmissionPolicy(Struct, frozen=True):
    """Policy by which a stream leaves its subject and returns.

    Attributes:
        unsubscribe_after_ns: Nanoseconds that refusals may go on; None: unlimited.
        resubscribe_after_ns: Minimum time off the subject.
    """

    unsubscribe_after_ns: int | None = 10_000_000_000
    resubscribe_after_ns: int = 1_000_000_000


NEVER_LEAVE: Final = AdmissionPolicy(unsubscribe_after_ns=None)


class Load(Struct, frozen=True):
    """Load of a stream.

    Attributes:
        refusals: Refusals for lack of room, since the start.
        held: Bytes that wait for the disk, of `limit`.
        total_held: Bytes that wait over all streams, of `total_limit`.
    """

    refusals: int
    held: int
    limit: int
    total_held: int
    total_limit: int

    @property
    def drained(self) -> bool:
        """True if there is room enough to return."""
        return (
            self.held <= _STREAM_LOW * self.limit
            and self.total_held <= _TOTAL_LOW * self.total_limit
        )


class Move(Enum):
    """Next move of a stream."""

    LEAVE = "leave"
    RETURN = "return"


class Admission:
    """One stream's state. Call `observe` as long as it is not `settled`, and after refusals.

    Args:
        policy: Policy of leaving and returning.
    """

    def __init__(self, policy: AdmissionPolicy) -> None:
        self._policy = policy
        self._refusals = 0
        self._refusing_since_ns: int | None = None
        self._refused_ns = 0
        self._away_since_ns: int | None = None

    @property
    def away(self) -> bool:
        """True if the stream has left its subject."""
        return self._away_since_ns is not None

    @property
    def settled(self) -> bool:
        """True if neither a leave nor a return is pending."""
        return self._away_since_ns is None and self._refusing_since_ns is None

    def observe(self, load: Load, now_ns: int) -> Move | None:
        """Take in where the stream stands at `now_ns` (monotonic); says what is to be done."""
        if self._away_since_ns is not None:
            return self._consider_return(load, now_ns, self._away_since_ns)
        if load.refusals != self._refusals:
            self._refusals = load.refusals
            self._refused_ns = now_ns
            if self._refusing_since_ns is None:
                self._refusing_since_ns = now_ns
        elif now_ns - self._refused_ns > _CALM_NS:
            self._refusing_since_ns = None
        limit_ns = self._policy.unsubscribe_after_ns
        since_ns = self._refusing_since_ns
        if limit_ns is None or since_ns is None or self._refused_ns - since_ns < limit_ns:
            return None
        self._away_since_ns, self._refusing_since_ns = now_ns, None
        return Move.LEAVE

    def _consider_return(self, load: Load, now_ns: int, since_ns: int) -> Move | None:
        if now_ns - since_ns < self._policy.resubscribe_after_ns or not load.drained:
            return None
        self._away_since_ns = None
        self._refusals = load.refusals  # what was refused on the way out is past
        return Move.RETURN


class ByteBudget:
    """Counts bytes held against a limit; used on the event loop only.

    Args:
        bytes_max: The limit. What is taken may pass it by one message at most.
        parent: The budget that this one is a share of; what is held here is held there, too.
    """

    def __init__(self, bytes_max: int, parent: "ByteBudget | None" = None) -> None:
        self.bytes_max = bytes_max
        self.held = 0
        self._parent = parent

    @property
    def room(self) -> int:
        """Bytes that may be taken now."""
        room = max(self.bytes_max - self.held, 0)
        return room if self._parent is None else min(room, self._parent.room)

    def take(self, size: int) -> None:
        """Hold more bytes."""
        self.held += size
        if self._parent is not None:
            self._parent.take(size)

    def release(self, size: int) -> None:
        """Hold fewer bytes."""
        self.held -= size
        assert self.held >= 0, self.held
        if self._parent is not None:
            self._parent.release(size)

    def share(self, bytes_max: int | None) -> "ByteBudget":
        """A stream's budget: what it is given, or half of this one, so that others have room."""
        wanted = self.bytes_max // 2 if bytes_max is None else bytes_max
        return ByteBudget(min(wanted, self.bytes_max), self)


class DiskSpace:
    """Whether the disk has space for what publishers send. Used on the event loop only.

    Retention, purges and commands need some space to free more. So publishers are refused while
    there is still some.

    Args:
        free_bytes_min: Below it there is none; from an eighth more on there is some again.

    Attributes:
        refusal: Refusal of what is published; None: there is space.
    """

    def __init__(self, free_bytes_min: int = 0) -> None:
        self.refusal: Refusal | None = None
        self._free_bytes_min = free_bytes_min

    def observe(self, free_bytes: int) -> bool:
        """Take in how much is free; return whether `refusal` has come or gone."""
        low, least = self.refusal is not None, self._free_bytes_min
        if free_bytes >= (least + least // 8 if low else least):
            self.refusal = None
        else:
            text = f"the disk of this node has {free_bytes:,} bytes free"
            self.refusal = Refusal(
                Nack.STORAGE_FAILED, f"{text}, less than min_free_bytes, {least:,}"
            )
        return low != (self.refusal is not None)
