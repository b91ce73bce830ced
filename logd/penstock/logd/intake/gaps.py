"""Ingest gaps: when which streams missed messages, or may have, and why.

A stream misses messages while it is not on its subject (reconnecting, unsubscribed, denied), and
when it drops what it cannot store and has nobody to tell. The former begin and end with an event;
the latter begin with the first message dropped and end with the last one, once it has been quiet.

What was under way when a connection broke is missed, too: that gap begins when everything was known
to have come, not when the loss was noticed. A process that reads too slowly, or was stopped, has
much under way when nats-server cuts it off.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from penstock.logd.format.acks import Nack
from penstock.logd.limits import GAPS_KEPT

_CALM_NS: Final = 1_000_000_000


class GapReason(StrEnum):
    """Why messages were missed."""

    RECONNECTING = "reconnecting"
    UNSUBSCRIBED = "unsubscribed"
    DENIED = "denied"
    BUSY = "busy"
    STREAM_FULL = "stream_full"
    STORAGE_FAILED = "storage_failed"
    NOT_ENOUGH_REPLICAS = "not_enough_replicas"
    READ_ONLY = "read_only"
    NO_LEADER = "no_leader"
    TOO_LARGE = "too_large"
    MALFORMED = "malformed"
    NOT_OFFERED = "not_offered"
    UNMET_EXPECTATION = "unmet_expectation"
    OUT_OF_SEQUENCE = "out_of_sequence"


DROPPING: Final = {
    Nack.BUSY: GapReason.BUSY,
    Nack.STREAM_FULL: GapReason.STREAM_FULL,
    Nack.STORAGE_FAILED: GapReason.STORAGE_FAILED,
    Nack.NOT_ENOUGH_REPLICAS: GapReason.NOT_ENOUGH_REPLICAS,
    Nack.READ_ONLY: GapReason.READ_ONLY,
    Nack.MESSAGE_TOO_LARGE: GapReason.TOO_LARGE,
    Nack.HEADERS_TOO_LARGE: GapReason.TOO_LARGE,
    Nack.BAD_HEADER: GapReason.MALFORMED,
    Nack.BAD_SUBJECT: GapReason.MALFORMED,
    Nack.BAD_BATCH: GapReason.MALFORMED,
    Nack.NO_SUBJECT_SEQUENCE: GapReason.MALFORMED,
    Nack.NO_ROLLUP: GapReason.NOT_OFFERED,
    Nack.NO_TTL: GapReason.NOT_OFFERED,
    Nack.NO_COUNTERS: GapReason.NOT_OFFERED,
    Nack.NO_ATOMIC_PUBLISH: GapReason.NOT_OFFERED,
    Nack.NO_SCHEDULES: GapReason.NOT_OFFERED,
    Nack.WRONG_LAST_SEQUENCE: GapReason.UNMET_EXPECTATION,
    Nack.WRONG_LAST_MESSAGE_ID: GapReason.UNMET_EXPECTATION,
    Nack.WRONG_STREAM: GapReason.UNMET_EXPECTATION,
    Nack.SEQUENCE_GAP: GapReason.OUT_OF_SEQUENCE,
    Nack.UNKNOWN_PRODUCER: GapReason.OUT_OF_SEQUENCE,
}
"""The reason of the gap that a refusal makes whose publisher left no subject for an answer."""


class Instant(NamedTuple):
    """One moment on both clocks: durations are measured with the first, shown with the second."""

    monotonic_ns: int
    unix_ns: int

    def back_to(self, monotonic_ns: int) -> "Instant":
        """An earlier moment, given on the first clock."""
        return Instant(monotonic_ns, self.unix_ns - (self.monotonic_ns - monotonic_ns))


class Gap(Struct):
    """One time without messages.

    Attributes:
        streams: Streams that missed messages.
        detail: Cause of the gap, in words.
        end: None while it lasts.
        messages: Number of missed messages; None: unknown.
    """

    streams: tuple[str, ...]
    reason: GapReason
    start: Instant
    detail: str = ""
    end: Instant | None = None
    messages: int | None = None

    def duration_ns(self, now: Instant) -> int:
        """Return the duration from start to end, or until now."""
        return max((self.end or now).monotonic_ns - self.start.monotonic_ns, 0)


class GapTotals(Struct):
    """Totals of one stream and reason, since the process started."""

    count: int = 0
    duration_ns: int = 0
    messages: int = 0


class _Dropping(Struct):
    gap: Gap
    last: Instant


class GapLedger(Struct):
    """Every gap that lasts, the last ones that ended, and totals.

    Attributes:
        ended: The last that ended, oldest first.
    """

    ended: deque[Gap] = msgspec.field(default_factory=lambda: deque(maxlen=GAPS_KEPT))
    _open: dict[tuple[GapReason, str], Gap] = msgspec.field(default_factory=dict)
    _dropping: dict[tuple[GapReason, str], _Dropping] = msgspec.field(default_factory=dict)
    _totals: dict[tuple[str, GapReason], GapTotals] = msgspec.field(default_factory=dict)
    _changes: int = 0

    @property
    def is_dropping(self) -> bool:
        """True if a stream has dropped messages a moment ago: `settle` ends that."""
        return bool(self._dropping)

    def settle(self, now: Instant) -> list[Gap]:
        """It is `now`; returns the gaps that have ended by quiet."""
        quiet = [
            key
            for key, dropping in self._dropping.items()
            if now.monotonic_ns - dropping.last.monotonic_ns > _CALM_NS
        ]
        with self._change():
            return [self._close(self._dropping.pop(key).gap, None) for key in quiet]

    def begin(
        self,
        streams: tuple[str, ...],
        reason: GapReason,
        start: Instant,
        *,
        detail: str = "",
        late: bool = False,
    ) -> Gap | None:
        """Streams leave their subjects together; None when they were away for that already.

        Args:
            streams: Names of the streams.
            reason: Why.
            start: The moment from which on they may have missed something.
            detail: In words.
            late: Others have been away for that reason before.
        """
        if not streams:
            return None
        key = (
            reason,
            "" if reason is GapReason.RECONNECTING and not late else streams[0],
        )  # all lose it at once
        if key in self._open:
            return None
        gap = self._open[key] = Gap(streams, reason, start, detail)
        return gap

    def end(self, reason: GapReason, now: Instant, *, stream: str | None = None) -> list[Gap]:
        """Gaps of a reason are over: of the one that began with a stream, or every one."""
        keys = [
            key for key in self._open if key[0] is reason and stream in (None, key[1])
        ]  # fmt: skip
        if not keys:  # nearly always
            return []
        with self._change():
            return [self._close(self._open.pop(key), now) for key in keys]

    def drop(self, stream: str, reason: GapReason, count: int, now: Instant) -> Gap | None:
        """Messages were dropped; returns the gap if it begins with them."""
        self._totals_of(stream, reason).messages += count
        dropping = self._dropping.get((reason, stream))
        if dropping is not None:
            dropping.last = dropping.gap.end = now
            dropping.gap.messages = (dropping.gap.messages or 0) + count
            return None
        gap = Gap((stream,), reason, now, end=now, messages=count)
        self._dropping[reason, stream] = _Dropping(gap, now)
        return gap

    def forget(self, stream: str) -> None:
        """A stream is no more; what it shared with others stays theirs."""
        for key, gap in list(self._open.items()):
            gap.streams = tuple(name for name in gap.streams if name != stream)
            if not gap.streams:
                del self._open[key]
        for reason in GapReason:
            self._dropping.pop((reason, stream), None)
            self._totals.pop((stream, reason), None)

    def lasting(self) -> list[Gap]:
        """Gaps that last, oldest first."""
        gaps = [*self._open.values(), *(found.gap for found in list(self._dropping.values()))]
        return sorted(gaps, key=lambda gap: gap.start)

    def totals(self, now: Instant) -> dict[tuple[str, GapReason], GapTotals]:
        """Return totals by stream and reason, with open gaps as of now; none ever decreases.

        May be called on another thread than the rest. A gap that just ends is still among the open
        ones, or already in the totals, never both or neither: what was read while the ledger
        changed is read again.
        """
        while True:
            changes = self._changes
            found = self._sum(now)
            if changes % 2 == 0 and changes == self._changes:
                return found

    def _sum(self, now: Instant) -> dict[tuple[str, GapReason], GapTotals]:
        found = {
            key: GapTotals(totals.count, totals.duration_ns, totals.messages)
            for key, totals in list(self._totals.items())
        }
        for gap in self.lasting():
            for stream in gap.streams:
                totals = found.setdefault((stream, gap.reason), GapTotals())
                totals.count += 1
                totals.duration_ns += gap.duration_ns(now)
        return found

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Gaps move from those that last to the totals: `_changes` is odd meanwhile."""
        self._changes += 1
        try:
            yield
        finally:
            self._changes += 1

    def _close(self, gap: Gap, now: Instant | None) -> Gap:
        gap.end = now or gap.end
        assert gap.end is not None
        for stream in gap.streams:
            totals = self._totals_of(stream, gap.reason)
            totals.count += 1
            totals.duration_ns += gap.duration_ns(gap.end)
        self.ended.append(gap)
        return gap

    def _totals_of(self, stream: str, reason: GapReason) -> GapTotals:
        return self._totals.setdefault((stream, reason), GapTotals())
