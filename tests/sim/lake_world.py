"""A lake of files under sinks, readers and compactors that stop, die and overtake each other.

Driven by one seed. All of them are the real ones but for the storage: before each of its calls
somebody else may do all of his work, time may pass, or a compactor is killed. The lease keeps two
compactors from each other only in that none goes on for longer than it lasts.
"""

import io
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.router.lake.compactor import Compactor
from penstock.router.lake.index import LakeIndex
from penstock.router.lake.layout import HIDDEN, LakeFile, source_of
from penstock.router.lake.merged_rows import MergedRows
from penstock.router.lake.plan import Plan, Policy
from penstock.router.lake.store import is_seen, show_one_by_one

if TYPE_CHECKING:
    from penstock.router.storage.objects import Objects

NS: Final = 1_000_000_000
KEEP_S: Final = 200
AFTER_S: Final = 20
_LEASE_S: Final = 60
_DIRECTORIES: Final = ("kind=log/date=2026-11-21/hour=08", "kind=span/date=2026-11-21/hour=09")
_OPEN_DIRECTORY: Final = "kind=log/date=2027-11-21/hour=08"
_IDS: Final = ("5f2c19aa", "77aa0000")
_DEPTH_MAX: Final = 2
_STEPS: Final = 30


class KilledError(Exception):
    """A compactor is no more."""


class Clock(SystemClock):
    """The world's."""

    def __init__(self) -> None:
        self.now_ns = 1_795_300_000 * NS

    @override
    def unix_ns(self) -> int:
        return self.now_ns


@dataclass
class MemoryStore:
    """See `penstock.router.lake.store.LakeStore`; and `objects`, in one."""

    before: Callable[[], None]
    clock: Clock
    exchanges: bool
    url: str = "memory"
    has_owner: bool = False
    content: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    said: dict[str, bytes] = field(default_factory=dict)
    is_locked: bool = False
    has_changed: bool = False

    def __post_init__(self) -> None:
        self.objects: Objects = self

    # `Objects`

    def create(self, name: str, data: bytes) -> bool:
        self.before()
        if name in self.said:
            return False
        self.said[name] = data
        return True

    def put(self, name: str, data: bytes) -> None:
        self.before()
        self.said[name] = data

    def get(self, name: str) -> bytes | None:
        self.before()
        return self.said.get(name)

    def names(self, below: str) -> list[str]:
        self.before()
        return sorted(it for it in self.said if it.startswith(f"{below}/"))

    def close(self) -> None:
        pass

    # `LakeStore`

    def files(self, below: str = "") -> list[LakeFile]:
        self.before()
        return [it for it in self._all(below) if is_seen(it.path)]

    def hidden(self) -> list[str]:
        self.before()
        return [it.path for it in self._all(HIDDEN)]

    def _all(self, below: str) -> list[LakeFile]:
        return [
            LakeFile(path, len(data), modified_ns)
            for path, (data, modified_ns) in self.content.items()
            if path.startswith(below)
        ]

    def open(self, path: str) -> BinaryIO:
        self.before()
        if path not in self.content:
            raise FileNotFoundError(path)
        return io.BytesIO(self.content[path][0])

    def write(self, path: str, write: Callable[[BinaryIO], Any]) -> None:
        file = io.BytesIO()
        write(file)
        self.before()
        self.content[path] = (file.getvalue(), self.clock.now_ns)
        self.has_changed = True

    def copy(self, source: str, target: str) -> None:
        self.before()
        if source not in self.content:
            raise FileNotFoundError(source)
        self.content[target] = (self.content[source][0], self.clock.now_ns)
        self.has_changed = True

    def remove(self, path: str) -> None:
        self.before()
        self.said.pop(path, None)
        self.content.pop(path, None)
        self.has_changed = True

    def show(self, plan: Plan) -> None:
        if not self.exchanges:
            show_one_by_one(self, plan)
            return
        self.before()
        if plan.hidden is not None and plan.hidden not in self.content:
            return
        for path in plan.paths:
            self.content.pop(path, None)
        if plan.hidden is not None and plan.target is not None:
            self.content[plan.target] = (self.content[plan.hidden][0], self.clock.now_ns)
        self.has_changed = True

    @contextmanager
    def lock(self) -> Iterator[None]:
        assert not self.is_locked
        self.is_locked = self.exchanges
        try:
            yield
        finally:
            self.is_locked = False

    def locate(self, path: str) -> str:
        return path


Row = tuple[str, int]
"""Id of a stream, offset."""

_Batch = tuple[str, str, tuple[int, ...]]
"""Directory, id of a stream, offsets."""


@dataclass
class LakeWorld:
    """One run; `policy` and `show` may be broken on purpose."""

    seed: int
    exchanges: bool
    marks: set[str] = field(default_factory=set)
    asks_merged: bool = True

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.clock = Clock()
        self.store = MemoryStore(self._between, self.clock, self.exchanges)
        self.policy = Policy(100_000, AFTER_S, KEEP_S)
        self._depth = 0
        self._is_compacting = self._is_publishing = False
        self._changed = True
        self._batches: list[_Batch] = []
        self._holes: list[_Batch] = []
        self._next = dict.fromkeys(_IDS, 0)
        self._delivered: set[Row] = set()
        self._moving: set[Row] = set()
        self._readers: list[tuple[int, list[str], set[Row]]] = []

    def run(self) -> None:
        """Let all go on for a while, then in peace, and look at what is left."""
        for _ in range(_STEPS):
            self._anything()
        self.settle()

    def settle(self) -> None:
        """Let all that is begun come to its end, and look at what is there."""
        self._kills, self._depth = False, _DEPTH_MAX
        self._compact_to_the_end()
        while self._holes:
            self._fill_hole()
        self._compact_to_the_end()
        self._check_all(LakeIndex(self.store).live())
        self._check_all([it for it in self.store.content if is_seen(it)])
        assert not [it for it in self.store.content if it.startswith(HIDDEN)]
        assert not self.store.names("plans"), "all plans come to an end"

    _kills = True

    def _compact_to_the_end(self) -> None:
        for _ in range(16):
            self.clock.now_ns += 2 * KEEP_S * NS
            self._compact()

    def deliver_and_plan(self) -> None:
        """Deliver to one partition, until there is a plan for it."""
        self._depth = _DEPTH_MAX
        while not self.store.names("plans"):
            self._deliver()
            self.clock.now_ns += AFTER_S * NS
            self._compact()

    def repeat_otherwise(self) -> None:
        """The last batch that can be comes again in other files, in this moment."""
        self._repeat_otherwise()

    def _anything(self) -> None:
        self._pass_time(self.random.choice((0, 1, 5, 30, 60)))
        sinks = (self._deliver, self._repeat, self._repeat_otherwise, self._fill_hole)
        actions = (*sinks, self._compact, self._read)
        (action,) = self.random.choices(actions, (2, 2, 1, 1, 4, 4))
        if self._is_publishing and action in sinks:
            return  # the sink does one thing at a time
        if self.store.is_locked and action is not self._read:
            return
        action()

    def _between(self) -> None:
        """Before each call of the storage."""
        if self._changed or self.store.has_changed:
            self._changed = self.store.has_changed = False
            self._check_listing()
            self._check_readers()
        if self._is_compacting and self._kills and self.random.random() < 0.02:
            self.marks.add("killed")
            raise KilledError
        if self._depth < _DEPTH_MAX and self.random.random() < 0.06:
            self._depth += 1
            self.marks.add("nested")
            was, self._is_compacting = self._is_compacting, False
            self._anything()
            self._is_compacting = was
            self._depth -= 1

    def _pass_time(self, seconds: int) -> None:
        if not self._is_publishing:  # which never takes as long as `keep_s`
            self.clock.now_ns += seconds * NS

    # Who works.

    def _compact(self) -> None:
        was, self._is_compacting = self._is_compacting, True
        try:
            begun_ns = self.clock.now_ns

            Compactor(self.store, self.policy, self.clock, "none").run_pass(
                lambda: self._require_lease(begun_ns)
            )
            self.marks.add("passed")
        except KilledError:
            self.store.is_locked = False
        finally:
            self._is_compacting = was

    def _require_lease(self, begun_ns: int) -> None:
        if self.clock.now_ns > begun_ns + _LEASE_S * NS:
            self.marks.add("late")
            raise KilledError

    def _deliver(self) -> None:
        directory = self.random.choice((*_DIRECTORIES, *_DIRECTORIES, _OPEN_DIRECTORY))
        stream_id = self.random.choice(_IDS)
        count = self.random.randrange(1, 5)
        begin = self._next[stream_id]
        offsets = tuple(range(begin, begin + 2 * count, 2))
        self._next[stream_id] += 2 * count + 1
        if count > 2 and self.random.random() < 0.5:
            self._holes.append((directory, stream_id, offsets[1:2]))
            offsets = (offsets[0], *offsets[2:])
        self._batches.append((directory, stream_id, offsets))
        self._publish(directory, stream_id, offsets)

    def _fill_hole(self) -> None:
        """A dead letter is replayed."""
        if self._holes:
            self._publish(*self._holes.pop())
            self.marks.add("filled")

    def _repeat(self) -> None:
        """A replay of any batch."""
        if self._batches:
            self.marks.add("repeated")
            self._publish(*self.random.choice(self._batches))

    def _repeat_otherwise(self) -> None:
        """The last batch, in two files in place of one."""
        if not self._batches:
            return
        at = next((it for it in reversed(range(len(self._batches))) if self._is_whole(it)), None)
        if at is None:
            return
        directory, stream_id, offsets = self._batches[at]
        self._moving.update((stream_id, it) for it in offsets)
        parts = [(directory, stream_id, it) for it in (offsets[:1], offsets[1:])]
        self._batches[at : at + 1] = parts
        stale = _path(directory, stream_id, offsets)
        with self._publishing():
            merged = MergedRows(self.store, self.clock.now_ns)
            merged.cancel_plans([stale])
            self.store.remove(stale)
        for batch in parts:
            self._publish(*batch)
        self.marks.add("cut otherwise")

    @contextmanager
    def _publishing(self) -> Iterator[None]:
        was, self._is_publishing = self._is_publishing, True
        with self.store.lock():
            yield
        self._is_publishing = was

    def _is_whole(self, at: int) -> bool:
        _, stream_id, offsets = self._batches[at]
        return len(offsets) > 1 and not any((stream_id, it) in self._moving for it in offsets)

    def _publish(self, directory: str, stream_id: str, offsets: tuple[int, ...]) -> None:
        with self._publishing():
            path = _path(directory, stream_id, offsets)
            rows = _rows(stream_id, offsets)
            if self.asks_merged:
                merged = MergedRows(self.store, self.clock.now_ns)
                merged.cancel_plans([path])
                rows = merged.without(path, rows)
            if rows.num_rows < len(offsets):
                self.marks.add("was merged")
            if rows.num_rows:
                left = tuple(rows["offset"].to_pylist())
                target = _path(directory, stream_id, left)
                self.store.write(target, lambda file: pq.write_table(rows, file))
        self._delivered.update((stream_id, it) for it in offsets)
        self._changed = True

    def _read(self) -> None:
        wanted = self._delivered - self._moving
        now_ns = self.clock.now_ns
        paths = LakeIndex(self.store).live()
        self._readers.append((now_ns, paths, wanted))
        self._changed = True

    # What must be so.

    def _check_readers(self) -> None:
        """Who has read the index finds each row once, for as long as files are kept.

        That may be shorter by as long as a process stands still between a look at the clock and
        what it notes, which is no longer than a lease.
        """
        self._readers = [
            it for it in self._readers if self.clock.now_ns < it[0] + (KEEP_S - _LEASE_S) * NS
        ]
        for _, paths, wanted in self._readers:
            missing = [it for it in paths if it not in self.store.content]
            moved = [it for it in missing if self._moving.intersection(_told(it))]
            assert missing == moved, f"files of the index are gone: {missing}"
            found = self._found([it for it in paths if it not in missing])
            twice = [it for it, count in found.items() if count > 1 and it not in self._moving]
            assert not twice, f"by the index twice: {twice}"
            assert wanted <= found.keys() | self._moving, "by the index missing"
            self.marks.add("read")

    def _check_listing(self) -> None:
        """Who lists sees no row twice, and misses none where directories are exchanged."""
        found = self._found([it for it in self.store.content if is_seen(it)])
        assert max(found.values(), default=0) <= 1, "by the listing twice"
        if self.exchanges:
            assert self._delivered - self._moving <= found.keys(), "by the listing missing"

    def _check_all(self, paths: list[str]) -> None:
        found = self._found(paths)
        assert found == Counter(self._delivered), "each row once in the end"

    def _found(self, paths: list[str]) -> Counter[Row]:
        return Counter(row for path in paths for row in self._rows_in(path))

    def _rows_in(self, path: str) -> list[Row]:
        data, _ = self.store.content[path]
        if data not in _KNOWN:
            table = pq.read_table(io.BytesIO(data))
            ids, offsets = table["trace_id"].to_pylist(), table["offset"].to_pylist()
            _KNOWN[data] = list(zip(ids, offsets, strict=True))
        return _KNOWN[data]


_KNOWN: dict[bytes, list[Row]] = {}
"""The rows of files that were looked into already."""


def _path(directory: str, stream_id: str, offsets: tuple[int, ...]) -> str:
    return f"{directory}/logs.{stream_id}-0-{offsets[0]:020d}-{offsets[-1]:020d}.parquet"


def _rows(stream_id: str, offsets: tuple[int, ...]) -> pa.Table:
    count = len(offsets)
    return pa.table(
        {
            "stream": ["logs"] * count,
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "service": [f"s{it % 3}" for it in offsets],
            "trace_id": [stream_id] * count,
        }
    )


def _told(path: str) -> set[Row]:
    """The rows of a sink's file, by its name; of another file none."""
    source = source_of(path, has_owner=False)
    if source is None:
        return set()
    (span,) = source.spans
    return {(span.stream_id, it) for it in range(span.first, span.last + 1)}
