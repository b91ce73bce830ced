"""The account of the applications behind a Unix socket, as each reports it with every batch.

    emitted = acked + dropped (by reason) + queued + spooled

for each sender: a process, or its journal of audit records. What a sender reports is from the
moment when it sent its last batch; the batch counts as queued until it is durable here. Two things
make a difference:

- The sender's own sum is not even, or it counts other records as acknowledged than were durable
  here since its batch before. Then the library or this collector is wrong.
- Its connection has ended, it has not come back, and records waited in its memory: they were lost
  with the process. After `LOST_SHOWN_NS` they count as dropped, with the reason `process_ended`.
  What it emitted after its last report is unknown.

Pure: the time comes in.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

MAX_SENDERS: Final = 256
"""Senders that are told apart, and services whose ended senders are added up, unless the source's
`max_senders` says otherwise. Each takes about 300 bytes of a status."""

COMES_BACK_NS: Final = 15 * 10**9
"""Time in which a sender connects again: three times the longest pause of the library."""

LOST_SHOWN_NS: Final = 3600 * 10**9
"""Time for which records that ended with a process make a difference."""

_DROPS_KEPT: Final = 4
"""Senders whose last counts of drops are known, for each of `max_senders`. Of one that comes back
after so many others, drops are counted again."""

PROCESS_ENDED: Final = "process_ended"


@dataclass(frozen=True, slots=True)
class SenderReport:
    """What a sender says of its records, since it started; see `penstock.specs`' transport.

    Attributes:
        emitted: Records offered to it.
        acked: Records acknowledged before this batch.
        queued: Records that wait in its memory, without the batch.
        spooled: Records that wait in a file, without the batch.
    """

    emitted: int
    acked: int
    queued: int
    spooled: int


@dataclass(frozen=True, slots=True)
class BatchReport:
    """A sender's report, and the batch that it came with.

    Attributes:
        service: The sender's service; empty: it has none.
        sequence: Number of the batch.
        count: Records of the batch.
        totals: The sender's counts.
        dropped: Records that the sender dropped, by reason.
        time_ns: Unix time at which it came.
    """

    service: str
    sequence: int
    count: int
    totals: SenderReport
    dropped: Counter[str]
    time_ns: int


@dataclass(slots=True)
class _Sender:
    """One sender.

    Attributes:
        last: Its last report.
        durable: Newest batch that is durable here.
        unseen: Records that it counts as acknowledged and that were not durable here; negative: it
            counts too few.
        connections: Connections that brought batches of it and are open.
        left_ns: Monotonic time at which the last of them ended.
    """

    last: BatchReport
    durable: int = 0
    unseen: int = 0
    connections: int = 0
    left_ns: int = 0

    @property
    def waiting(self) -> int:
        """Records of the last batch that are not durable yet."""
        return self.last.count if self.durable < self.last.sequence else 0

    def is_adopted_by(self, report: BatchReport) -> bool:
        """Return whether the report is of another process, which has adopted this one's file.

        That one counts from 0, and the records that it found as emitted: it counts fewer as emitted
        or, once no connection of this one is open, fewer as acknowledged than were so here.
        """
        if report.totals.emitted < self.last.totals.emitted:
            return True
        acked = self.last.totals.acked
        if report.sequence > self.last.sequence:
            acked += self.last.count - self.waiting
        return not self.connections and report.totals.acked < acked

    def as_dict(self, now_ns: int) -> dict[str, Any]:
        totals, dropped = self.last.totals, Counter(self.last.dropped)
        acked = totals.acked + self.last.count - self.waiting
        queued = totals.queued + self.waiting
        lost = 0
        gone_ns = 0 if self.connections else now_ns - self.left_ns
        if gone_ns > COMES_BACK_NS and queued:
            if gone_ns > LOST_SHOWN_NS:
                dropped[PROCESS_ENDED] += queued
            else:
                lost = queued
            queued = 0
        ends = acked + dropped.total() + queued + totals.spooled
        return {
            "service": self.last.service,
            "emitted": totals.emitted,
            "acked": acked,
            "dropped": dict(dropped),
            "queued": queued,
            "spooled": totals.spooled,
            "lost": lost,
            "difference": totals.emitted - ends,
            "unseen": self.unseen,
            "connected": self.connections > 0,
            "time_ns": self.last.time_ns,
        }


@dataclass(slots=True)
class _Writes:
    """Batches of a sender that are being made durable.

    Attributes:
        count: Number of them, those that were sent again included.
        newest: Newest sequence among them and those before that have ended meanwhile.
    """

    count: int = 0
    newest: int = 0


@dataclass(slots=True)
class AppAccounts:
    """The senders of one source.

    Counts of `others`, `untracked` and `unreported` are `acked`, and `dropped_` by reason.

    Attributes:
        max_senders: Senders that are told apart; beyond it those that have ended are added up by
            service. It bounds these services, too.
        ended: Counts of senders that are no longer told apart, by service.
        others: Likewise, of services beyond `max_senders`.
        untracked: Records that connected senders beyond `max_senders` sent meanwhile. Once there is
            room for a sender its own account has them, too.
        unreported: Records of senders that report nothing.
    """

    max_senders: int = MAX_SENDERS
    _senders: dict[str, _Sender] = field(default_factory=dict)
    ended: dict[str, Counter[str]] = field(default_factory=dict)
    others: Counter[str] = field(default_factory=Counter)
    untracked: Counter[str] = field(default_factory=Counter)
    unreported: Counter[str] = field(default_factory=Counter)
    _drops: dict[str, Mapping[str, Mapping[str, int]]] = field(default_factory=dict)
    _writes: dict[str, _Writes] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Return whether there was a sender."""
        sums = self.ended or self.others or self.untracked or self.unreported
        return bool(self._senders or sums)

    def report(self, sender: str, report: BatchReport, now_ns: int) -> bool:
        """Take what a sender says with a batch, before the batch is durable.

        Returns:
            False where `max_senders` are connected: its records are `untracked`.
        """
        if sender not in self._senders and not self._make_room(now_ns):
            return False
        before = self._senders.pop(sender, None)
        if before is not None and before.is_adopted_by(report):
            if report.sequence == before.last.sequence:  # that batch is in the account of the other
                before.last = replace(before.last, count=0)
            self._end(before, now_ns)
            before = None
        made = _Sender(report, left_ns=now_ns)
        if before is not None:
            made.connections, made.left_ns = before.connections, before.left_ns
            made.durable, made.unseen = before.durable, before.unseen
            if report.sequence == before.last.sequence + 1:
                durable = before.last.count - before.waiting
                made.unseen += report.totals.acked - before.last.totals.acked - durable
        self._senders[sender] = made  # the newest is last
        return True

    def new_drops(self, sender: str, dropped: Mapping[str, Mapping[str, int]]) -> Counter[str]:
        """Return how many records a sender has dropped since its last batch, by its own reasons.

        Args:
            sender: Its id.
            dropped: What it has dropped since it started, by kind and reason.
        """
        before, new = self._drops.pop(sender, {}), Counter[str]()
        if len(self._drops) >= _DROPS_KEPT * self.max_senders:
            del self._drops[next(iter(self._drops))]
        for kind, reasons in dropped.items():
            for reason, count in reasons.items():
                new[reason] += max(0, count - before.get(kind, {}).get(reason, 0))
        self._drops[sender] = dropped
        return new

    def begin_write(self, sender: str, sequence: int) -> bool:
        """Note that a batch of a sender is being made durable; `end_write` follows.

        Returns:
            False for one that was sent again meanwhile, and is in the sums already.
        """
        writes = self._writes.setdefault(sender, _Writes())
        writes.count += 1
        is_new = sequence > writes.newest
        writes.newest = max(writes.newest, sequence)
        return is_new

    def end_write(self, sender: str) -> None:
        """A write of a sender's batch has ended."""
        writes = self._writes[sender]
        writes.count -= 1
        if not writes.count:
            del self._writes[sender]

    def durable(self, sender: str, sequence: int) -> None:
        """A batch of a sender is durable here."""
        known = self._senders.get(sender)
        if known is not None:
            known.durable = max(known.durable, sequence)

    def connect(self, sender: str) -> None:
        """A connection has brought the first batch of a sender."""
        known = self._senders.get(sender)
        if known is not None:
            known.connections += 1

    def disconnect(self, sender: str, now_ns: int) -> None:
        """That connection has ended."""
        known = self._senders.get(sender)
        if known is not None:
            known.connections = max(0, known.connections - 1)
            known.left_ns = now_ns

    def as_dict(self, now_ns: int) -> dict[str, Any]:
        """Senders by id, the sums of those that are no longer told apart, and of all others."""
        return {
            "senders": {name: one.as_dict(now_ns) for name, one in self._senders.items()},
            "ended": {service: dict(counts) for service, counts in self.ended.items()},
            "others": dict(self.others),
            "untracked": dict(self.untracked),
            "unreported": dict(self.unreported),
        }

    def _make_room(self, now_ns: int) -> bool:
        """Add up the senders that ended first, where there are as many as are told apart."""
        surplus = len(self._senders) - self.max_senders + 1
        if surplus <= 0:
            return True
        ended = [
            name
            for name, it in self._senders.items()
            if not it.connections and now_ns - it.left_ns > COMES_BACK_NS
        ]
        for name in ended[:surplus]:
            self._end(self._senders.pop(name), now_ns)
        return len(ended) >= surplus

    def _end(self, sender: _Sender, now_ns: int) -> None:
        service, sums = sender.last.service, self.others
        if service in self.ended or len(self.ended) < self.max_senders:
            sums = self.ended.setdefault(service, Counter())
        facts = sender.as_dict(now_ns)
        acked, dropped = facts["acked"], Counter[str](facts["dropped"])
        if facts["lost"]:
            dropped[PROCESS_ENDED] += facts["lost"]
        sums.update(acked=acked, emitted=acked + dropped.total())
        sums.update({f"dropped_{reason}": count for reason, count in dropped.items()})


def merge_apps(accounts: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The accounts of several workers: of a sender that several know, the newest report counts."""
    senders: dict[str, Any] = {}
    ended: dict[str, Counter[str]] = {}
    sums: dict[str, Counter[str]] = {
        name: Counter() for name in ("others", "untracked", "unreported")
    }
    for account in accounts:
        for name, facts in account["senders"].items():
            if name not in senders or senders[name]["time_ns"] < facts["time_ns"]:
                senders[name] = facts
        for service, counts in account["ended"].items():
            ended.setdefault(service, Counter()).update(counts)
        for name, counted in sums.items():
            counted.update(account[name])
    return {
        "senders": senders,
        "ended": {name: dict(counts) for name, counts in ended.items()},
        **{name: dict(counted) for name, counted in sums.items()},
    }
