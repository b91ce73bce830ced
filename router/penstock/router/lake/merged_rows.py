"""Lookup of rows that a sink may have delivered before and that a merge has renamed.

A merge has removed the names that the sink knows those rows by. So the merged files of a partition
are asked which offsets they have.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.router.lake.index import LakeIndex
from penstock.router.lake.layout import Source, Span, source_of
from penstock.router.lake.merge import decode_source, naming_damage
from penstock.router.lake.plan import PlanState
from penstock.router.lake.store import LakeStore


class MergedRows:
    """The merged files of a lake, as of now; for one batch.

    Args:
        store: The lake; its lock is held, if it has one.
    """

    def __init__(self, store: LakeStore, clock_ns: int) -> None:
        self._store = store
        self._index = LakeIndex(store)
        self._now_ns = clock_ns
        self._plans = self._index.plans()
        self._found: dict[str, list[tuple[str, Source]]] = {}

    def cancel_plans(self, paths: Iterable[str]) -> None:
        """Cancel what would merge these files, or others with records of theirs, if it can be.

        The files are about to be published or removed.
        """
        undecided = [it for it in self._plans if it.decision is None]
        if not undecided:
            return
        wanted = set(paths)
        named = [(path.rpartition("/")[0], self._named(path)) for path in wanted]
        for state in undecided:
            plan = state.plan
            mine = [source for directory, source in named if directory == plan.directory]
            if wanted.intersection(plan.paths) or any(
                _overlap(source, self._named(path)) for source in mine for path in plan.paths
            ):
                self._index.decide(plan, "cancelled", self._now_ns)
        self._plans = self._index.plans()

    def without(self, path: str, rows: pa.Table) -> pa.Table:
        """The rows that no merged file has.

        They are of one partition of the log, and would be published at the path.
        """
        wanted = self._named(path)
        if wanted is None or not rows.num_rows:
            return rows
        (span,) = wanted.spans
        for merged, source in self._merged_files(path.rpartition("/")[0]):
            if _overlap(wanted, source):
                there = self._offsets(merged, span)
                rows = rows.filter(pc.invert(pc.is_in(rows.column("offset"), value_set=there)))
        return rows

    def may_have(self, path: str) -> bool:
        """Return whether `without` would have to read a merged file."""
        wanted = self._named(path)
        files = self._merged_files(path.rpartition("/")[0])
        return wanted is not None and any(_overlap(wanted, source) for _, source in files)

    def _named(self, path: str) -> Source | None:
        return source_of(path, has_owner=self._store.has_owner)

    def _merged_files(self, directory: str) -> list[tuple[str, Source]]:
        if directory not in self._found:
            self._found[directory] = list(self._look(directory))
        return self._found[directory]

    def _look(self, directory: str) -> Iterator[tuple[str, Source]]:
        plans = [it for it in self._plans if it.plan.directory == directory]
        paths = [it.path for it in self._store.files(directory) if it.is_compacted]
        for path in [*paths, *filter(None, map(_hidden_of, plans))]:
            try:
                with naming_damage(self._store.locate(path)), self._store.open(path) as file:
                    source = decode_source(pq.read_schema(file).metadata)
            except FileNotFoundError:  # it was merged with others, or shown, in this moment
                continue
            if source is not None:
                yield path, source

    def _offsets(self, path: str, span: Span) -> pa.ChunkedArray:
        """The offsets of a partition of the log that a merged file has."""
        is_wanted = [
            ("stream", "=", span.stream),
            ("partition", "=", span.partition),
            ("offset", ">=", span.first),
            ("offset", "<=", span.last),
        ]
        with naming_damage(self._store.locate(path)), self._store.open(path) as file:
            return pq.read_table(file, columns=["offset"], filters=is_wanted)["offset"]


def _hidden_of(state: PlanState) -> str | None:
    """The merged file of a plan that is not shown yet."""
    if state.decision != "merged" or state.shown_ns is not None:
        return None
    return state.plan.hidden


def _overlap(one: Source | None, other: Source | None) -> bool:
    """Return whether two files may have a record in common."""
    if one is None or other is None or one.owner != other.owner:
        return False
    return any(
        (a.stream, a.stream_id, a.partition) == (b.stream, b.stream_id, b.partition)
        and a.first <= b.last
        and b.first <= a.last
        for a in one.spans
        for b in other.spans
    )
