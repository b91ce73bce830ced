"""A log of our own making for the data source, and a stream's reader of it."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from typing_extensions import override

from penstock.router.columns.projection import Projection
from penstock.router.errors import DataLossError, LogUnavailableError
from penstock.router.read.logd_reader import LogState
from penstock.router.read.offset_spec import Subscription
from penstock.router.read.offsets import FrameSize, Offsets, Readable, Span, StreamPartition
from penstock.router.read.options import parse_options
from penstock.router.read.record_sizes import Found, Look, Sample
from penstock.router.read.source import LogDataSource, LogStreamReader
from tests.unit.router.sink_rows import TestClock

LOGS = StreamPartition("logs", 0)
TRACES = StreamPartition("traces", 0)
NEEDED = {"logd": "127.0.0.1:1", "subscribe": "logs"}


class FakeLog:
    """Says what a test wants; None is an unreachable logd."""

    def __init__(self, readable: Readable | None) -> None:
        self.clock = TestClock()
        self.readable = readable
        self.known = ["logs"]
        self.gone: set[str] = set()
        self.written: int | None = None
        self.partitions = 1
        self.epoch = 1
        self.sizes: dict[str, int] = {}
        self.large: dict[tuple[str, int, int], int] = {}
        self.measured: list[tuple[str, int, int]] = []
        self.looked_at: list[tuple[str, int, int]] = []
        self.answers: int | None = None
        self.kept: int | None = None
        self.news = FakeNews(self)

    def state_now(
        self, streams: Subscription | tuple[str, ...], *, may_be_gone: bool = False
    ) -> LogState:
        if self.readable is None:
            raise LogUnavailableError("away")
        if self.news.comes:
            come = bisect_right(self.news.comes, self.clock.now_ns)
            self.readable = Readable(self.readable.start, come)
        names = streams.streams(self.known) if isinstance(streams, Subscription) else streams
        if self.gone.intersection(names) and not may_be_gone:
            raise DataLossError("logd has no stream")
        names = tuple(name for name in names if name not in self.gone)
        parts = [StreamPartition(name, it) for name in names for it in range(self.partitions)]
        if isinstance(streams, Subscription):
            parts = [at for at in parts if streams.covers(at)]
        return LogState(
            dict.fromkeys(parts, self.readable),
            dict.fromkeys(names, "a"),
            dict.fromkeys([StreamPartition(name, 0) for name in names], self.epoch),
            dict.fromkeys(parts, self.written or self.readable.end),
        )

    def sample(
        self, looks: Iterable[Look], *, subject: str | None, patiently: bool, found: Found
    ) -> None:
        """Each stream's own; after so many `answers` none for somebody who does not wait."""
        for look in looks:
            self.looked_at.append((*look.span.where, look.offset))
            if self.answers is not None:
                if not patiently and not self.answers:
                    raise LogUnavailableError("QUOTA_EXCEEDED")
                self.answers -= 1
            found(look, self.size_at(look))

    def size_at(self, look: Look) -> Sample:
        """What is found there."""
        return Sample(self.sizes.get(look.span.stream, 100), look.offset, look.offset + 1)

    def frame_sizes(self, span: Span, *, subject: str | None) -> Iterable[FrameSize]:
        """A frame for each record, of its stream's size, or its own in `large`."""
        usual = self.sizes.get(span.stream, 100)
        for offset in range(span.start, span.end):
            self.measured.append((*span.where, offset))
            size = self.large.get((*span.where, offset), usual)
            yield FrameSize(offset, offset + 1, size)

    def kept_until(self, span: Span, *, patiently: bool) -> int:
        """All of it, unless a test says otherwise."""
        return span.end if self.kept is None else min(self.kept, span.end)

    state = state_now


class FakeNews:
    """New records that come at times that a test says.

    Attributes:
        comes: When the record at each offset comes; monotonic. Empty: the log is as it is.
        waited_at: The ends that were waited at, by the time when the wait began.
    """

    def __init__(self, log: FakeLog) -> None:
        self.comes: list[int] = []
        self.waited_at: list[tuple[int, dict[StreamPartition, int]]] = []
        self.fails = False
        self._log = log

    def wait(self, ends: Mapping[StreamPartition, int], seconds: float, **_: Any) -> bool:
        """Moves the clock to the first record, or to the end of the wait."""
        clock = self._log.clock
        self.waited_at.append((clock.now_ns, dict(ends)))
        if self.fails:
            return False
        until_ns = clock.now_ns + int(seconds * 1e9)
        next_ns = next(iter(self.comes[min(ends.values()) :]), until_ns + 1)
        clock.now_ns = max(min(next_ns, until_ns), clock.now_ns)
        return next_ns <= until_ns


class Opened(AbstractContextManager[Any]):
    """What a reader opens; each of its readers has the same log."""

    def __init__(self, log: Any) -> None:
        self._log = log

    def __call__(self, *_: object) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    @override
    def __exit__(self, *_: object) -> None:
        """Others read it, too."""


def stream_reader(log: FakeLog, **options: str) -> LogStreamReader:
    given = {name: value for name, value in (NEEDED | options).items() if value}
    chosen = parse_options(given, streaming=True)
    shape = Projection(chosen.view, chosen.view.columns)
    return LogStreamReader(chosen, shape, log.clock, Opened(log))


def source_of(log: FakeLog, options: dict[str, str]) -> LogDataSource:
    """The data source, of that log."""

    class Source(LogDataSource):
        open_log = Opened(log)

    return Source(options)


def at(offset: int) -> dict[str, dict[str, Any]]:
    return Offsets({LOGS: offset}, {"logs": "a"}, {LOGS: 1}).to_json()


def both(logs: int, traces: int) -> dict[str, dict[str, Any]]:
    epochs = {LOGS: 1, TRACES: 1}
    return Offsets({LOGS: logs, TRACES: traces}, {"logs": "a", "traces": "a"}, epochs).to_json()
