"""The log in memory: what is not compacted yet, and how far it is committed, durable, applied.

base_index      the last entry that is gone; the snapshot covers it
applied         handed to the state machine
committed       on a majority
persisted       durable here; an entry that replaced another counts again
written         handed to the disk
last_index

base <= applied <= committed <= last,   applied <= persisted <= written <= last
"""

from collections import deque
from collections.abc import Sequence

from penstock.logd.raft.messages import Entry, Snapshot


class RaftLog:
    """One member's log. Positions are indexes of entries; all ranges include both ends.

    Args:
        snapshot: Snapshot before the log; None: it begins at its first entry.
        entries: After the snapshot, all durable.
    """

    def __init__(self, snapshot: Snapshot | None, entries: Sequence[Entry]) -> None:
        self.snapshot = snapshot
        self.base_index = snapshot.index if snapshot else 0
        self.base_term = snapshot.term if snapshot else 0
        self._entries = list(entries)
        assert all(entry.index == self.base_index + n for n, entry in enumerate(entries, 1))
        self.applied = self.committed = self.base_index
        self.persisted = self.written = self.last_index
        self._writing: deque[tuple[int, int]] = deque()

    @property
    def last_index(self) -> int:
        """Index of the last entry, or of the snapshot when nothing follows it."""
        return self.base_index + len(self._entries)

    @property
    def last_term(self) -> int:
        return self._entries[-1].term if self._entries else self.base_term

    def term_at(self, index: int) -> int | None:
        """The term of an entry; None when it is compacted or not there. Entry 0 is of term 0."""
        if index == self.base_index:
            return self.base_term
        position = index - self.base_index - 1
        return self._entries[position].term if 0 <= position < len(self._entries) else None

    def matches(self, index: int, term: int) -> bool:
        """Return whether entry `index` is here and of `term`."""
        return self.term_at(index) == term

    def is_up_to_date(self, index: int, term: int) -> bool:
        """Return whether a log with this end has all that may be committed here (Raft 5.4.1)."""
        return (term, index) >= (self.last_term, self.last_index)

    def entry(self, index: int) -> Entry:
        """An entry that is here."""
        assert self.base_index < index <= self.last_index, (self.base_index, index)
        return self._entries[index - self.base_index - 1]

    def entries_from(self, index: int, bytes_max: int, last: int | None = None) -> list[Entry]:
        """Entries from `index` on, at most `bytes_max` together, but one if there is one.

        Args:
            index: Not compacted.
            bytes_max: Maximum of the sum of `Entry.size`.
            last: The last one wanted; the log's last if it is not given.
        """
        assert index > self.base_index
        taken: list[Entry] = []
        size = 0
        stop = self.last_index if last is None else last
        for position in range(index - self.base_index - 1, stop - self.base_index):
            entry = self._entries[position]
            size += entry.size
            if taken and size > bytes_max:
                break
            taken.append(entry)
        return taken

    def append(self, entries: Sequence[Entry]) -> None:
        """Append entries that follow on the last one."""
        assert all(entry.index == self.last_index + n for n, entry in enumerate(entries, 1))
        self._entries.extend(entries)

    def first_conflict(self, entries: Sequence[Entry]) -> Entry | None:
        """The first of `entries` that is not here as it is; None when all are."""
        return next((e for e in entries if not self.matches(e.index, e.term)), None)

    def truncate(self, index: int) -> None:
        """Remove entry `index` and all after it; they conflict with the leader's.

        A committed entry never does: that would be another state on every member.
        """
        assert index > self.committed, f"entry {index} is committed (up to {self.committed})"
        del self._entries[index - self.base_index - 1 :]
        self.persisted = min(self.persisted, index - 1)
        self.written = min(self.written, index - 1)
        self._writing = deque((number, min(last, index - 1)) for number, last in self._writing)

    def commit_to(self, index: int) -> bool:
        """Everything up to `index` is committed; whether that is more than before."""
        if index <= self.committed:
            return False
        assert index <= self.last_index, f"commit {index} beyond the log's end {self.last_index}"
        self.committed = index
        return True

    def last_possible_match(self, index: int, term: int) -> int:
        """The last entry up to `index` whose term is at most `term`, or the last compacted one.

        Of two logs, one refused `index` of `term`: neither has a common entry behind this. After
        etcd's findConflictByTerm; it saves a message for each entry of a term that diverged.
        """
        index = min(index, self.last_index)
        while index > self.base_index and (self.term_at(index) or 0) > term:
            index -= 1
        return index

    def take_unwritten(self, number: int) -> tuple[Entry, ...]:
        """Return the unwritten entries, to be written in step `number`."""
        entries = tuple(self._entries[self.written - self.base_index :])
        self.written = self.last_index
        self._writing.append((number, self.written))
        return entries

    def mark_persisted(self, number: int) -> None:
        """Every step up to `number` is durable, but what was truncated meanwhile is not in it."""
        while self._writing and self._writing[0][0] <= number:
            self.persisted = max(self.persisted, self._writing.popleft()[1])

    def restore(self, snapshot: Snapshot) -> None:
        """Begin again behind a leader's snapshot, which is not durable yet."""
        assert snapshot.index > self.committed
        self.snapshot = snapshot
        self.base_index, self.base_term = snapshot.index, snapshot.term
        self._entries = []
        self.committed = self.written = snapshot.index
        self.persisted = self.applied  # the entries up to there are gone, the state is not
        self._writing.clear()

    def keep_snapshot(self, snapshot: Snapshot, entries_kept: int) -> None:
        """Note a snapshot of applied entries and drop most of those it covers."""
        assert self.base_index <= snapshot.index <= self.applied
        self.snapshot = snapshot
        base = max(self.base_index, snapshot.index - entries_kept)
        term = self.term_at(base)
        assert term is not None
        del self._entries[: base - self.base_index]
        self.base_index, self.base_term = base, term

    def next_to_apply(self, bytes_max: int) -> list[Entry]:
        """Entries committed, durable here and not applied, at most `bytes_max` together, or one."""
        last = min(self.committed, self.persisted)
        if last <= self.applied:
            return []
        return self.entries_from(self.applied + 1, bytes_max, last)
