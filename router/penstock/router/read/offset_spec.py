"""Begin and end of a read: an end of the log, offsets or times; and the streams that it reads.

Names and meanings are those of Spark's Kafka source.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from penstock.router.errors import BadOptionError
from penstock.router.read.offsets import Offsets, StreamPartition

_SUBJECT: Final = re.compile(r"(?:(?:\*|[^\s.*>]+)\.)*(?:\*|>|[^\s.*>]+)")

Strategy = Literal["error", "latest"]
"""Action where no record is as young as a time: fail, or begin at the end."""


@dataclass(frozen=True, slots=True)
class Times:
    """Times in place of offsets: each stands for the first record at or after it.

    Attributes:
        every: Milliseconds since 1970 UTC for all partitions; None: only those in `each`.
        each: Milliseconds by partition.
        strategy: Action where there is no such record.
    """

    every: int | None = None
    each: Mapping[StreamPartition, int] = field(default_factory=dict)
    strategy: Strategy = "error"

    def of(self, where: StreamPartition) -> int | None:
        """The time for a partition; None where it has none."""
        return self.each.get(where, self.every)


OffsetSpec = Offsets | Times | int
"""`EARLIEST`, `LATEST`, offsets that may contain them, or times."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """The streams and partitions that are read; exactly one of the three is given.

    Attributes:
        names: Streams.
        pattern: A regular expression that a stream's whole name must match.
        partitions: Some partitions only.
    """

    names: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: frozenset[StreamPartition] = frozenset()

    def streams(self, known: Collection[str]) -> tuple[str, ...]:
        """The streams to read, of those that are known or whether they are or not."""
        if self.pattern is not None:
            matching = _matcher(self.pattern)
            return tuple(sorted(name for name in known if matching(name)))
        return self.names or tuple(sorted({where.stream for where in self.partitions}))

    def covers(self, where: StreamPartition) -> bool:
        return not self.partitions or where in self.partitions

    def wants(self, stream: str) -> bool:
        return stream in self.streams([stream])


class Goal:
    """The offsets that each sink must reach: the end of the log when the job started.

    Args:
        ends: Readable end of each partition at that time.
        stream_ids: Id of each stream at that time.
        written: Log end offset of each partition, whether readable yet or not.
    """

    def __init__(
        self,
        ends: Mapping[StreamPartition, int],
        stream_ids: Mapping[str, str],
        written: Mapping[StreamPartition, int],
    ) -> None:
        self._ends = dict(ends)
        self._stream_ids = dict(stream_ids)
        self._written = written

    def log_is(
        self,
        stream_ids: Mapping[str, str],
        written: Mapping[StreamPartition, int],
        *,
        losses_are_accepted: bool,
    ) -> None:
        """The log says how it is now; where losses are accepted, what is gone is not waited for."""
        self._written = written
        if losses_are_accepted:
            self._ends = {
                at: min(end, written.get(at, end))
                for at, end in self._ends.items()
                if stream_ids.get(at.stream) == self._stream_ids[at.stream]
            }

    def is_reached(self, at: Offsets) -> bool:
        """True if a sink that has come so far has it all."""
        if any(self._written.get(where, offset) < offset for where, offset in at.next.items()):
            return False  # the log lost what it has read: the next batch fails, or begins there
        return all(
            at.next.get(where, 0) >= end
            and at.stream_ids.get(where.stream) == self._stream_ids.get(where.stream)
            for where, end in self._ends.items()
            if end > 0
        )


def check_subject(subject: str) -> str:
    """Make sure that records can be on a subject, or on those that its wildcards stand for.

    Raises:
        BadOptionError: It is no subject of NATS.
    """
    if _SUBJECT.fullmatch(subject) is None:
        raise BadOptionError(
            f"{subject!r} is no subject: tokens with dots between them, `*` for any one, and at the"
            " end `>` for all that follow"
        )
    return subject


def check_pattern(pattern: str) -> None:
    """Make sure that a pattern can be matched in time linear in the name.

    Raises:
        BadOptionError: It cannot.
    """
    _matcher(pattern)


def assigned(document: Any) -> frozenset[StreamPartition]:
    """Partitions from `{"logs": [0, 1]}`.

    Raises:
        BadOptionError: Of another form.
    """
    if not isinstance(document, dict) or not document:
        raise BadOptionError(f'option assign must look like {{"logs": [0, 1]}}, not {document!r}')
    found: set[StreamPartition] = set()
    for stream, partitions in document.items():
        numbers = partitions if isinstance(partitions, list) else None
        if not numbers or not all(type(n) is int and n >= 0 for n in numbers):
            raise BadOptionError(f"option assign: {stream!r} needs a list of partitions")
        found |= {StreamPartition(stream, number) for number in numbers}
    return frozenset(found)


def times_by_partition(document: Any, option: str) -> dict[StreamPartition, int]:
    """Times from `{"logs": {"0": 1795000000000}}`.

    Raises:
        BadOptionError: Of another form.
    """
    if not isinstance(document, dict):
        raise BadOptionError(f'option {option} must look like {{"logs": {{"0": 1795000000000}}}}')
    found: dict[StreamPartition, int] = {}
    for stream, partitions in document.items():
        if not isinstance(partitions, dict):
            raise BadOptionError(f"option {option}: {stream!r} must map partitions to times")
        for name, time_ms in partitions.items():
            if not name.isdigit() or type(time_ms) is not int or time_ms < 0:
                raise BadOptionError(f"option {option}: {stream!r}: {name!r}: {time_ms!r}")
            found[StreamPartition(stream, int(name))] = time_ms
    return found


def _matcher(pattern: str) -> Any:
    try:
        import re2
    except ImportError:
        raise BadOptionError(
            "option subscribePattern needs google-re2, which the extra `router` installs"
        ) from None
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options=options).fullmatch
    except re2.error as error:
        raise BadOptionError(
            f"option subscribePattern: {pattern!r} is no regular expression of RE2: {error}"
        ) from None
