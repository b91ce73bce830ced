"""What became of every message that was acked: a history held against the logs of all replicas.

Pure: the caller reads the logs. A message is *kept* when the record at the offset of its ack is
that message, on every replica. Everything else is a violation, told by its kind.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from penstock.logd.format.batch import Record
from tests.harness.ledger import Acked, Item, Keys, Rule, Sequences, Step, item_of

_TOLD = 5
"""Violations of a kind told in full."""


class Kind(Enum):
    """What went wrong."""

    LOST_PREFIX = "acked, and the log begins after it"
    LOST_MIDDLE = "acked, and there is nothing at its offset"
    LOST_TAIL = "acked, and the log ends before it"
    REPLACED = "acked, and another message is at its offset"
    SPLIT = "two messages were acked with one offset"
    MOVED = "one message was acked with two offsets though its rule stores it once"
    DUPLICATED = Step.DUPLICATED.value
    REORDERED = Step.REORDERED.value
    DIVERGED = "replicas differ"
    EPOCH_FELL = "leader epochs fall"
    UNKNOWN = "nobody published it"
    MISREAD = "a reader was shown something else"
    SKIPPED = "no member of the group was given it"


class Row(NamedTuple):
    """A record of a log, and the leader epoch it was written in."""

    epoch: int
    record: Record


class Given(NamedTuple):
    """A record that a member of a consumer group was given, under its grant's epoch."""

    member: str
    epoch: int
    offset: int
    record: Record


@dataclass(frozen=True, slots=True)
class Log:
    """One replica's log: records in [start, end), by offset."""

    start: int
    end: int
    rows: Mapping[int, Row]


@dataclass(frozen=True, slots=True)
class Publishing:
    """What is known of the publishers, by name."""

    rules: Mapping[str, Rule]
    keys: Mapping[str, Keys]


@dataclass
class Verdict:
    """What was found.

    Attributes:
        counts: Acked records that were kept, stored ones, and what went wrong, by kind.
        told: The first violations of each kind.
    """

    counts: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether nothing went wrong."""
        return not self.told

    def violated(self, kind: Kind, what: str) -> None:
        """Note a violation."""
        self.counts[kind.name] += 1
        if self.counts[kind.name] <= _TOLD:
            self.told.append(f"{kind.name}: {kind.value}: {what}")


def judge(
    acked: Iterable[Acked],
    publishing: Publishing,
    replicas: Mapping[str, Log],
    reads: Mapping[str, Sequence[tuple[int, Record]]],
) -> Verdict:
    """Hold what publishers were told and readers were shown against the logs of all replicas.

    Args:
        acked: All of one stream; batches as the ack of their last row.
        publishing: Of that stream.
        replicas: By node, once the cluster has come to rest.
        reads: By reader, in the order it was shown them.
    """
    verdict = Verdict()
    rows = [row for ack in acked for row in ack.rows()]
    _check_acks(verdict, rows, publishing)
    for node, log in replicas.items():
        _check_kept(verdict, rows, publishing, node, log)
    names = sorted(replicas)
    for node in names[1:]:
        _compare(verdict, (names[0], replicas[names[0]]), (node, replicas[node]))
    log = replicas[names[0]]
    _check_order(verdict, publishing, log)
    for reader, shown in reads.items():
        _check_read(verdict, reader, shown, log)
    return verdict


def judge_group(verdict: Verdict, given: Iterable[Given], replicas: Mapping[str, Log]) -> None:
    """Hold what the members of a group were given, in order, against a replica's log.

    At least once: the next reader begins nowhere after what was given before. It may be again, also
    under the same grant: a member that did not hear of its session begins from what it committed.
    """
    log = replicas[min(replicas)]
    expected = log.start
    for one in given:
        verdict.counts["given to the group"] += 1
        row = log.rows.get(one.offset)
        if row is None or row.record != one.record:
            verdict.violated(Kind.MISREAD, f"{one}: now {row}")
        if one.offset > expected:
            verdict.violated(Kind.SKIPPED, f"{expected} to {one.offset}, before {one}")
        expected = max(expected, one.offset + 1)
    if expected < log.end:
        verdict.violated(Kind.SKIPPED, f"{expected} to {log.end}")


def _check_acks(verdict: Verdict, rows: Iterable[Acked], publishing: Publishing) -> None:
    by_offset: dict[int, Item] = {}
    by_item: dict[Item, int] = {}
    for ack in rows:
        verdict.counts["acked"] += 1
        other = by_offset.setdefault(ack.offset, ack.item)
        if other != ack.item:
            verdict.violated(Kind.SPLIT, f"{other} and {ack.item} at {ack.offset}")
        before = by_item.setdefault(ack.item, ack.offset)
        once = publishing.rules[ack.item.publisher] is not Rule.IN_ORDER
        if before != ack.offset and once:
            verdict.violated(Kind.MOVED, f"{ack.item} at {before} and {ack.offset}")


def _check_kept(
    verdict: Verdict, rows: Iterable[Acked], publishing: Publishing, node: str, log: Log
) -> None:
    for ack in rows:
        what = f"{ack.item} at {ack.offset}, on {node}, which has [{log.start}, {log.end})"
        row = log.rows.get(ack.offset)
        if ack.offset < log.start:
            verdict.violated(Kind.LOST_PREFIX, what)
        elif ack.offset >= log.end:
            verdict.violated(Kind.LOST_TAIL, what)
        elif row is None:
            verdict.violated(Kind.LOST_MIDDLE, what)
        elif (found := item_of(row.record, publishing.keys)) != ack.item:
            verdict.violated(Kind.REPLACED, f"{what}: {found or row.record}")
        else:
            verdict.counts["kept"] += 1


def _compare(verdict: Verdict, one: tuple[str, Log], other: tuple[str, Log]) -> None:
    (name, log), (other_name, other_log) = one, other
    ends = (log.start, log.end), (other_log.start, other_log.end)
    if ends[0] != ends[1]:
        verdict.violated(Kind.DIVERGED, f"{name} has {ends[0]}, {other_name} has {ends[1]}")
    for offset in sorted(log.rows.keys() | other_log.rows.keys()):
        mine, its = log.rows.get(offset), other_log.rows.get(offset)
        if mine != its:
            verdict.violated(
                Kind.DIVERGED, f"at {offset} {name} has {mine}, {other_name} has {its}"
            )


def _check_order(verdict: Verdict, publishing: Publishing, log: Log) -> None:
    sequences = Sequences(publishing.rules, late_repeats=True)
    epoch = 0
    for offset, row in sorted(log.rows.items()):
        verdict.counts["stored"] += 1
        if row.epoch < epoch:
            verdict.violated(Kind.EPOCH_FELL, f"{row.epoch} after {epoch} at {offset}")
        epoch = row.epoch
        item = item_of(row.record, publishing.keys)
        if item is None:
            verdict.violated(Kind.UNKNOWN, f"{row.record} at {offset}")
            continue
        last = sequences.lasts.get(item.publisher)
        match sequences.take(item):
            case Step.AGAIN as step:
                verdict.counts[step.value] += 1
            case Step.DUPLICATED | Step.REORDERED as step:
                verdict.violated(Kind[step.name], f"{item} at {offset}, after {last}")
            case Step.NEXT:
                pass


def _check_read(
    verdict: Verdict, reader: str, shown: Sequence[tuple[int, Record]], log: Log
) -> None:
    expected = log.start
    for offset, record in shown:
        verdict.counts["read"] += 1
        if offset != expected:
            verdict.violated(Kind.MISREAD, f"{reader} was shown {offset}, not {expected}")
        expected = offset + 1
        row = log.rows.get(offset)
        if row is None or row.record != record:
            verdict.violated(Kind.MISREAD, f"{reader} was shown {record} at {offset}: now {row}")
