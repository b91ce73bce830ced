"""Producer sequences: each batch of a producer is taken once and in order (docs/decisions/0004).

A batch names the producer's sequence before it and its own. It is accepted when the previous one is
the last that was stored; of a producer that is not known, the last is 0. At or below the last it is
a duplicate. Anything else is a gap: something before it has not arrived.

Producers idle for longer than the expiry are forgotten, as the one idle longest is when there are
too many; one that comes back starts again from 0.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Accept:
    """The batch is the next one."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The batch is stored already.

    Attributes:
        offset: Of the stored batch's last record; -1 when it is not the producer's latest batch.
    """

    offset: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Something between the last stored batch and this one is missing.

    Attributes:
        last: The last sequence stored; 0 when the producer is not known.
    """

    last: int


Verdict = Accept | Duplicate | Gap


@dataclass(frozen=True, slots=True)
class ProducerState:
    """What is remembered of one producer.

    Attributes:
        sequence: Of its last stored batch.
        offset: Of that batch's last record.
        seen_ns: When it was recorded, on the caller's clock.
    """

    sequence: int
    offset: int
    seen_ns: int


class ProducerTable:
    """The last sequence of each producer, bounded in number and age.

    Args:
        expiry_ns: How long an idle producer is remembered.
        producers_max: How many are remembered whatever their age.

    Attributes:
        evicted: Producers forgotten before they expired, for there were too many.
    """

    def __init__(self, *, expiry_ns: int, producers_max: int) -> None:
        self._expiry_ns = expiry_ns
        self.producers_max = producers_max
        self.evicted = 0
        self._states: OrderedDict[bytes, ProducerState] = OrderedDict()
        self._uncommitted: deque[tuple[int, bytes, ProducerState | None]] = deque()

    def __len__(self) -> int:
        """Producers remembered."""
        return len(self._states)

    def last(self, producer_id: bytes) -> ProducerState | None:
        """What is remembered of a producer, expired or not."""
        return self._states.get(producer_id)

    def check(self, producer_id: bytes, previous: int, sequence: int, now_ns: int) -> Verdict:
        """Say whether a batch is the next one of its producer; changes nothing but expiry.

        Args:
            producer_id: Of the batch's producer.
            previous: The producer's sequence before the batch, 0 for its first.
            sequence: The batch's own, greater than `previous`.
            now_ns: The time, on the clock that `record` is given.
        """
        self._expire(now_ns)
        state = self._states.get(producer_id)
        last = 0 if state is None else state.sequence
        if previous == last:
            return Accept()
        if sequence <= last:
            assert state is not None
            return Duplicate(state.offset if sequence == last else -1)
        return Gap(last)

    def record(self, producer_id: bytes, sequence: int, offset: int, now_ns: int) -> None:
        """Remember that a batch was accepted, its last record at `offset`."""
        self._uncommitted.append((offset, producer_id, self._states.get(producer_id)))
        self._states[producer_id] = ProducerState(sequence, offset, now_ns)
        self._states.move_to_end(producer_id)
        if len(self._states) > self.producers_max:
            _, oldest = self._states.popitem(last=False)
            self.evicted += oldest.seen_ns >= now_ns - self._expiry_ns

    def committed(self, end_offset: int) -> None:
        """Batches below are committed: nobody will ask for the states before them."""
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0][0] < end_offset:
            uncommitted.popleft()

    def snapshot(self, end_offset: int | None = None) -> tuple[list[bytes], list[ProducerState]]:
        """Every producer, and the state of each; by rising offset the one idle longest is first.

        As quick as `MessageIds.snapshot`, and for its reason, where no batch is left out.

        Args:
            end_offset: Batches from there on are left out; committed ones are not. None: none is.
        """
        later = [
            entry
            for entry in self._uncommitted
            if end_offset is not None and entry[0] >= end_offset
        ]
        if not later:
            return list(dict.keys(self._states)), list(dict.values(self._states))
        states = dict(self._states)
        for _, producer_id, before in reversed(later):
            if before is not None:
                states[producer_id] = before
            else:
                states.pop(producer_id, None)
        return list(states.keys()), list(states.values())

    def since(self, offset: int) -> list[tuple[bytes, ProducerState]]:
        """Producers whose last batch ends at or above an offset, the one idle longest first."""
        found = []
        for name in reversed(self._states):
            state = self._states[name]
            if state.offset < offset:
                break
            found.append((name, state))
        return found[::-1]

    def restore(self, rows: Iterable[tuple[bytes, int, int, int]]) -> None:
        """Replace the table by (id, sequence, offset, seen_ns), the one idle longest first."""
        self._states.clear()
        for producer, sequence, offset, seen_ns in rows:
            self.record(producer, sequence, offset, seen_ns)
        self._uncommitted.clear()

    def take_over(
        self, before: "ProducerTable", since: int, theirs: Mapping[bytes, ProducerState]
    ) -> None:
        """Go on from the table that this one takes the place of.

        Args:
            before: Where it did not know what came before a batch that may be cut off again, the
                other replica may have.
            since: Of batches from there on only that table knows.
            theirs: What the other replica remembers of committed batches.
        """
        for name, state in before.since(since):
            self.record(name, state.sequence, state.offset, state.seen_ns)
        self._uncommitted.clear()
        for offset, name, earlier in before.uncommitted():
            known = theirs.get(name)
            if known is not None and (earlier.offset if earlier else -1) < known.offset < offset:
                self._uncommitted.append((offset, name, known))
            else:
                self._uncommitted.append((offset, name, earlier))

    def uncommitted(self) -> list[tuple[int, bytes, ProducerState | None]]:
        """Batches that may be cut off again: last offset, producer, and its state before."""
        return list(self._uncommitted)

    def _expire(self, now_ns: int) -> None:
        limit = now_ns - self._expiry_ns
        while self._states:
            oldest = next(iter(self._states))
            if self._states[oldest].seen_ns >= limit:
                return
            del self._states[oldest]
