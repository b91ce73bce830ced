"""The account of every record: what came in is delivered, named as not delivered, or held.

    recovered + received + copied = delivered + filtered + sampled + deduplicated + aggregated
                                    + quarantined + dropped + held

`recovered` is what was in the spool when the process started. `held` is measured where records
are, not computed from the rest, so that the equation can fail if the collector is wrong. A record
met again after a restart that the log had before it counts as delivered, and as `repeated`.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from penstock.collector.sources.unix.apps import AppAccounts

SENDER_DROPPED: Final = "sender_dropped_"
"""Prefix of the notes that count what senders dropped themselves, by reason."""
REFUSED_REASONS_MAX: Final = 64
"""Reasons of one source; each is a series in the metrics."""


@dataclass(slots=True)
class Account:
    """One source's counts, in records since the process started.

    Attributes:
        spooled: Taken into the spool and not decoded yet.
        pending: Decoded and neither in a queue nor in quarantine yet.
        in_queues: In an ordered queue and not done.
        repeated: Number of those delivered that an earlier process had brought to the log.
        refused_by_logd: In quarantine because logd will never take them.
        copied: Made of others, where several transforms take the same records.
        aggregated: Went into metrics, which are received under the name of their transform.
        sensitive: Values that the detectors found, by detector.
        taken: Spooled since start or found in the spool then.
        refused: Number of refused records, by fault; they went into quarantine, or found no room
            there.
    """

    received: int = 0
    recovered: int = 0
    delivered: int = 0
    repeated: int = 0
    copied: int = 0
    filtered: int = 0
    sampled: int = 0
    deduplicated: int = 0
    aggregated: int = 0
    quarantined: int = 0
    refused_by_logd: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    spooled: int = 0
    pending: int = 0
    in_queues: int = 0
    taken: int = 0
    notes: Counter[str] = field(default_factory=Counter)
    sensitive: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    def refuse(self, reason: str, count: int) -> None:
        """Count refused records; reasons beyond `REFUSED_REASONS_MAX` together, as ``other``."""
        known = reason in self.refused or len(self.refused) < REFUSED_REASONS_MAX
        self.refused[reason if known else "other"] += count

    @property
    def held(self) -> int:
        """Records between receipt and the log."""
        return self.spooled + self.pending + self.in_queues

    @property
    def quarantined_total(self) -> int:
        """Records in quarantine, for whatever reason."""
        return self.quarantined + self.refused_by_logd

    @property
    def difference(self) -> int:
        """Records that the account cannot explain; 0 unless the collector is wrong."""
        left = self.recovered + self.received + self.copied
        ended = self.filtered + self.sampled + self.deduplicated + self.aggregated
        right = self.delivered + ended + self.quarantined_total + self.dropped.total()
        return left - right - self.held

    def as_dict(self) -> dict[str, object]:
        return {
            "recovered": self.recovered,
            "received": self.received,
            "copied": self.copied,
            "delivered": self.delivered,
            "repeated": self.repeated,
            "filtered": self.filtered,
            "sampled": self.sampled,
            "deduplicated": self.deduplicated,
            "aggregated": self.aggregated,
            "quarantined": self.quarantined_total,
            "dropped": dict(self.dropped),
            "held": self.held,
            "difference": self.difference,
            "scrubbed": self.notes["scrubbed"],
            "sender_dropped": {
                key.removeprefix(SENDER_DROPPED): count
                for key, count in self.notes.items()
                if key.startswith(SENDER_DROPPED) and count
            },
            "sensitive": dict(self.sensitive),
            "refused": dict(self.refused),
        }


class Ledger:
    """Accounts by source name.

    Attributes:
        apps: What applications report of their own records, by source.
    """

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}
        self.apps: dict[str, AppAccounts] = {}

    def __getitem__(self, source: str) -> Account:
        """The source's account; a new one when it has none."""
        account = self.accounts.get(source)
        return self.accounts.setdefault(source, Account()) if account is None else account

    def apps_of(self, source: str) -> AppAccounts:
        """The account of the applications that send to a source."""
        apps = self.apps.get(source)
        return self.apps.setdefault(source, AppAccounts()) if apps is None else apps

    def spooled(self, source: str, count: int) -> None:
        """A unit of `count` records is durable in the spool."""
        account = self[source]
        account.received += count
        account.spooled += count
        account.taken += count

    def recovered(self, source: str, count: int) -> None:
        """A unit of `count` records was found in the spool at start."""
        account = self[source]
        account.recovered += count
        account.spooled += count
        account.taken += count

    def decoded(self, source: str, *, counted: int, found: int) -> None:
        """A spooled unit was decoded: what it holds replaces what its source counted."""
        account = self[source]
        account.spooled -= counted
        account.received += found - counted
        account.pending += found

    def sorted(self, source: str, *, taken: int, copies: int, refused: int) -> None:
        """Records that were pending are in queues or ended; those refused are still pending."""
        account = self[source]
        account.copied += copies
        account.pending += copies - (taken + copies - refused)

    def read(self, source: str, count: int) -> None:
        """Records were read from what is its own spool."""
        account = self[source]
        account.received += count
        account.pending += count

    def unread(self, source: str) -> None:
        """A source that is its own spool failed with records in its hands: they are read again."""
        account = self[source]
        account.received -= account.pending
        account.pending = 0

    def shed(self, source: str, reason: str, count: int) -> None:
        """A spooled unit was given up before it was decoded."""
        account = self[source]
        account.spooled -= count
        account.dropped[reason] += count

    def dropped(self, source: str, reason: str, count: int) -> None:
        """Records were received and given up."""
        account = self[source]
        account.received += count
        account.dropped[reason] += count
