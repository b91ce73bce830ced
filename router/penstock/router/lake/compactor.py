"""Compaction and retention at work: what `penstock.router.lake.plan` says, done to a lake."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from penstock.base.clock import BlockingClock
from penstock.router.lake.index import LakeIndex
from penstock.router.lake.layout import LakeFile, Source, source_of
from penstock.router.lake.merge import decode_source, is_of_file, unified_schema, write_merged
from penstock.router.lake.plan import (
    Create,
    Decide,
    Decision,
    Forget,
    Merge,
    Plan,
    PlanState,
    Policy,
    RemoveHidden,
    Show,
    Snapshot,
    is_unchanged,
    steps,
)
from penstock.router.lake.store import LakeStore
from penstock.router.meter import Meter
from penstock.router.storage.store_lease import StoreLease

_LEASE_S: Final = 30.0
_WAIT_LEASES: Final = 3
"""Number of lease lengths that a compactor waits for another process that may be dead."""

_log = structlog.get_logger()


@dataclass(slots=True)
class PassResult:
    """Result of a pass.

    Attributes:
        counts: `merged_files`, `merged_into`, `removed_files`, `skipped_plans`.
        waiting: Number of plans that are not finished.
    """

    counts: Counter[str] = field(default_factory=Counter)
    waiting: int = 0


class Compactor:
    """Brings a lake on, a pass at a time.

    Args:
        is_stopping: Asked between steps.
    """

    def __init__(
        self,
        store: LakeStore,
        policy: Policy,
        clock: BlockingClock,
        compression: str,
        *,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store = store
        self._index = LakeIndex(store, caches=True)
        self._policy = policy
        self._clock = clock
        self._compression = compression
        self._is_stopping = is_stopping
        self._sources: dict[LakeFile, Source | None] = {}
        self._reading = ""

    def run_pass(self, require_lease: Callable[[], None] = lambda: None) -> PassResult:
        """Do all that may be done now.

        `require_lease` is called before each step; it raises where another process may be at work.

        Raises:
            ServiceError: The lake cannot be reached or changed now.
        """
        result = PassResult()
        failed: set[str] = set()
        self._index.remove_remnants()
        while not self._is_stopping():
            found = [
                it
                for it in steps(self.snapshot(), self._clock.unix_ns(), self._policy)
                if isinstance(it, RemoveHidden) or it.plan.id not in failed
            ]
            if not found:
                break
            for step in found:
                if self._is_stopping():
                    break
                require_lease()
                if isinstance(step, RemoveHidden):
                    self._store.remove(step.path)
                    continue
                try:
                    self._act(step, result)
                except (pa.ArrowException, OSError) as error:
                    if not is_of_file(error):
                        raise
                    failed.add(step.plan.id)
                    self._give_up(step.plan, error, result)
        LakeIndex(self._store).write_live()
        result.waiting = len(self._index.plans())
        return result

    def snapshot(self) -> Snapshot:
        """The lake now."""
        hidden = frozenset(self._store.hidden())  # before the plans: each is of one, or of none
        plans = self._index.plans()
        files = {it.path: it for it in self._store.files()}
        return Snapshot(files, hidden, plans, self._known(files, plans))

    def _known(self, files: dict[str, LakeFile], plans: Sequence[PlanState]) -> dict[str, Source]:
        """Return the records of each file; read merged ones only if there is one to merge."""
        found: dict[str, Source] = {}
        per_directory = Counter(it.directory for it in files.values())
        planned = {path for state in plans for path in (*state.plan.paths, state.plan.target)}
        small = self._policy.target_bytes
        for file in files.values():
            if not file.is_compacted:
                source = source_of(file.path, has_owner=self._store.has_owner)
            elif file.size >= small or per_directory[file.directory] == 1 or file.path in planned:
                continue
            else:
                source = self._source_of_compacted(file)
            if source is not None:
                found[file.path] = source
        return found

    def _source_of_compacted(self, file: LakeFile) -> Source | None:
        if file not in self._sources:
            try:
                with self._store.open(file.path) as opened:
                    self._sources[file] = decode_source(pq.read_schema(opened).metadata)
            except FileNotFoundError:
                return None
            except (pa.ArrowException, OSError) as error:
                if not is_of_file(error):
                    raise
                self._sources[file] = None
                self._skipped(file.directory, [file.path], error)
        return self._sources[file]

    def _act(self, step: Create | Merge | Decide | Show | Forget, result: PassResult) -> None:
        plan = step.plan
        match step:
            case Create():
                self._index.create(plan, self._clock.unix_ns())
            case Merge():
                self._write_hidden(plan)
            case Decide(decision=decision):
                if self._decide(plan, decision) == "merged" and plan.merges:
                    result.counts["merged_files"] += len(plan.sources)
                    result.counts["merged_into"] += 1
            case Show():
                self._store.show(plan)
                self._index.note_shown(plan, self._clock.unix_ns())
                result.counts["removed_files"] += 0 if plan.merges else len(plan.sources)
            case Forget():
                if plan.hidden is not None:
                    self._store.remove(plan.hidden)
                self._index.forget(plan)

    def _decide(self, plan: Plan, decision: Decision) -> Decision:
        with self._store.lock():
            if decision == "merged" and not self._only(plan):
                decision = "cancelled"
            # Behind that: what a plan that is forgotten had is not there any more.
            files = {it.path: it for it in self._store.files(plan.directory)}
            if not is_unchanged(plan, files):
                decision = "cancelled"
            return self._index.decide(plan, decision, self._clock.unix_ns())

    def _only(self, plan: Plan) -> bool:
        """Cancel other plans with the same sources; return False if one of them has merged."""
        now_ns = self._clock.unix_ns()
        others = [
            it
            for it in self._index.plans()
            if it.plan.id != plan.id and not set(plan.paths).isdisjoint(it.plan.paths)
        ]
        return all(self._index.decide(it.plan, "cancelled", now_ns) != "merged" for it in others)

    def _write_hidden(self, plan: Plan) -> None:
        assert plan.hidden is not None
        sources = [self._source(file) for file in plan.sources]
        spans = tuple(span for source in sources for span in source.spans)
        merged = Source(sources[0].owner, spans)
        schema = unified_schema(it.schema_arrow for it in self._opened(plan))
        self._store.write(
            plan.hidden,
            lambda to: write_merged(self._opened(plan), schema, merged, to, self._compression),
        )

    def _opened(self, plan: Plan) -> Iterator[pq.ParquetFile]:
        """The sources, of which one is open at a time: there may be more than files can be."""
        for it in plan.sources:
            self._reading = it.path
            with self._store.open(it.path) as file, pq.ParquetFile(file) as parquet:
                yield parquet

    def _source(self, file: LakeFile) -> Source:
        found = (
            self._source_of_compacted(file)
            if file.is_compacted
            else source_of(file.path, has_owner=self._store.has_owner)
        )
        if found is None:
            raise FileNotFoundError(file.path)
        return found

    def _give_up(self, plan: Plan, error: Exception, result: PassResult) -> None:
        """A plan that cannot be done now is tried again in the next pass."""
        result.counts["skipped_plans"] += 1
        self._skipped(plan.directory, plan.paths, error)

    def _skipped(self, directory: str, paths: Sequence[str], error: Exception) -> None:
        _log.warning(
            "compaction_skipped",
            lake=self._store.url,
            directory=directory,
            files=len(paths),
            file=self._reading if self._reading in paths else paths[0],
            reason=str(error).partition("\n")[0],
        )


@contextmanager
def leased(
    store: LakeStore, clock: BlockingClock, is_stopping: Callable[[], bool]
) -> Iterator[Callable[[], None] | None]:
    """The lease of a lake's compaction; a check of it, or None: another process has it.

    Raises:
        ServiceError: The lake cannot be reached.
    """
    lease = StoreLease(
        store.objects, f"compactor {uuid4().hex}", _LEASE_S, clock, location=store.url
    )
    until_ns = clock.elapsed_ns() + round(_WAIT_LEASES * _LEASE_S * 1e9)
    if not lease.take(lambda: is_stopping() or clock.elapsed_ns() > until_ns):
        yield None
        return
    lease.keep_renewing()
    try:
        yield lease.require_held
    finally:
        lease.close()


def maintain(
    store: LakeStore,
    policy: Policy,
    clock: BlockingClock,
    compression: str,
    meter: Meter,
    is_stopping: Callable[[], bool],
) -> None:
    """A pass for a sink, which counts it.

    Raises:
        ServiceError: The lake cannot be reached or changed now.
    """
    result = compact(store, policy, clock, compression, is_stopping)
    for what, number in (result.counts if result else Counter[str]()).items():
        meter.count(f"compaction_{what}", number)


def compact(
    store: LakeStore,
    policy: Policy,
    clock: BlockingClock,
    compression: str,
    is_stopping: Callable[[], bool] = lambda: False,
) -> PassResult | None:
    """A pass under the lease; None: another process is at it.

    Raises:
        ServiceError: The lake cannot be reached or changed now.
    """
    with leased(store, clock, is_stopping) as require_lease:
        if require_lease is None:
            return None
        compactor = Compactor(store, policy, clock, compression, is_stopping=is_stopping)
        return compactor.run_pass(require_lease)
