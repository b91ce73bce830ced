"""Which files of a lake are merged or removed, and the next step of each plan; no I/O.

A plan goes through these states, which anyone can tell by what is in the lake:

    planned    _index/plans/ID.json is there; nothing has changed for any reader
    decided    _index/plans/ID.decided says `merged` or `cancelled`; made once, by one process
    shown      _index/plans/ID.shown is there: sources are gone, the merged file is in their place
    forgotten  nothing of it is there any more

`steps` looks at a snapshot and says what may be done now. Each step may be done by several
processes, twice, or long after it was said, and in each case changes nothing that matters:

- `Merge` writes the same rows at a hidden path.
- `Decide` makes a name that is made once.
- `Show` removes sources, which come back in no other way than by a plan that was cancelled, and
  copies from the hidden path. That is there until the plan is forgotten, and the target is no
  plan's source before.
- `Forget` removes what belongs to a plan that is shown or cancelled, long after that.

The one bound is `keep_s`. No call of a compactor is done so long after it was last known to have
the lease, and no sink publishes so long after it looked at the plans.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final, Literal, Self

from penstock.router.lake.layout import (
    LakeFile,
    Source,
    compacted_path,
    digest_of_names,
    end_of,
    hidden_path,
)

SOURCES_MAX: Final = 2000
"""Files that one plan merges."""

PLANS_MAX: Final = 200
"""Plans that are on their way at a time: each pass, and each sink's batch, looks at all of them."""

_LATE_FILES_MAX: Final = 8
"""So many small files beside a merged one are merged with it, however small they are."""

_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Plan:
    """Files that are replaced by one, or removed.

    Attributes:
        id: Its name. It tells sources from others of the same names.
        directory: Where they are.
        sources: Those files.
        merges: Whether one replaces them; else they are past their retention.
    """

    id: str
    directory: str
    sources: tuple[LakeFile, ...]
    merges: bool

    @classmethod
    def of(cls, directory: str, sources: Iterable[LakeFile], *, merges: bool) -> Self:
        """A new one."""
        chosen = tuple(sorted(sources, key=lambda it: it.path))
        told = (f"{it.path} {it.size} {it.modified_ns}" for it in chosen)
        return cls(digest_of_names(told), directory, chosen, merges)

    @property
    def paths(self) -> list[str]:
        return [it.path for it in self.sources]

    @property
    def target(self) -> str | None:
        """Where the merged file is in the end."""
        return compacted_path(self.directory, self.id) if self.merges else None

    @property
    def hidden(self) -> str | None:
        """Where it is before."""
        return hidden_path(self.directory, self.id) if self.merges else None


Decision = Literal["merged", "cancelled"]


@dataclass(frozen=True, slots=True)
class PlanState:
    """A plan, and how far it is.

    Attributes:
        plan: It.
        created_ns: When it was written down, of the creating process's clock; Unix time.
        decision: What was decided; None: nothing yet.
        decided_ns: When, of the deciding process's clock; Unix time.
        shown_ns: When it was shown, likewise; None: it is not.
    """

    plan: Plan
    created_ns: int = 0
    decision: Decision | None = None
    decided_ns: int = 0
    shown_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A lake at a moment.

    Attributes:
        files: Those that readers by listing see, by path.
        hidden: Paths of merged files that are not shown, or still kept.
        plans: All that are not forgotten.
        sources: What the files hold, of those of which that is known.
    """

    files: Mapping[str, LakeFile]
    hidden: frozenset[str]
    plans: tuple[PlanState, ...]
    sources: Mapping[str, Source]


@dataclass(frozen=True, slots=True)
class Policy:
    """When files are merged and removed.

    Attributes:
        target_bytes: Files of this size are left alone; merged ones are about as large.
        after_s: A partition is merged this long after its time has ended.
        keep_s: What readers may still have in hand stays readable for so long.
        max_age_s: Partitions whose time ended so long ago are removed; None: none are.
        merges: Whether files are merged at all.
    """

    target_bytes: int
    after_s: float
    keep_s: float
    max_age_s: float | None = None
    merges: bool = True


@dataclass(frozen=True, slots=True)
class Create:
    """Write the plan down."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Merge:
    """Write its merged file, hidden."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Decide:
    """Make its decision, unless one was made."""

    plan: Plan
    decision: Decision


@dataclass(frozen=True, slots=True)
class Show:
    """Put the merged file in the place of its sources, and note that it is done."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Forget:
    """Remove its hidden file, and the plan."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class RemoveHidden:
    """Remove a hidden file of no plan."""

    path: str


Step = Create | Merge | Decide | Show | Forget | RemoveHidden


def steps(snapshot: Snapshot, now_ns: int, policy: Policy) -> list[Step]:
    """What may be done now; one step of each plan, and new plans."""
    found: list[Step] = []
    for state in snapshot.plans:
        step = next_step(state, snapshot, now_ns, policy.keep_s)
        if step is not None:
            found.append(step)
    mine = {state.plan.hidden for state in snapshot.plans}
    found += [RemoveHidden(path) for path in sorted(snapshot.hidden) if path not in mine]
    room = max(PLANS_MAX - len(snapshot.plans), 0)
    return found + [Create(it) for it in islice(new_plans(snapshot, now_ns, policy), room)]


def next_step(state: PlanState, snapshot: Snapshot, now_ns: int, keep_s: float) -> Step | None:
    """What brings one plan on; None: it is to wait."""
    plan = state.plan
    keep_ns = round(keep_s * _NS)
    if state.decision == "cancelled":  # its name may be needed again, by no process that is late
        return Forget(plan) if now_ns >= state.decided_ns + keep_ns else None
    if state.decision is None:
        if not is_unchanged(plan, snapshot.files):
            return Decide(plan, "cancelled")
        if now_ns < state.created_ns + keep_ns:  # a sink that did not see it may be publishing
            return None
        is_merged = plan.hidden is None or plan.hidden in snapshot.hidden
        return Decide(plan, "merged") if is_merged else Merge(plan)
    if state.shown_ns is None:
        return Show(plan) if now_ns >= state.decided_ns + keep_ns else None
    return Forget(plan) if now_ns >= state.shown_ns + keep_ns else None


def is_unchanged(plan: Plan, files: Mapping[str, LakeFile]) -> bool:
    """Whether the sources are there as they were when they were chosen."""
    return all(files.get(it.path) == it for it in plan.sources)


def live_files(files: Iterable[str], plans: Iterable[PlanState]) -> list[str]:
    """The paths that hold each record once.

    Args:
        files: Those that a listing found.
        plans: As they were read before that listing and after it.
    """
    found = set(files)
    for state in plans:
        plan = state.plan
        if state.decision != "merged":
            continue
        found.difference_update(plan.paths)
        if plan.target is not None and plan.hidden is not None and state.shown_ns is None:
            found.discard(plan.target)
            found.add(plan.hidden)
    return sorted(found)


def new_plans(snapshot: Snapshot, now_ns: int, policy: Policy) -> Iterator[Plan]:
    """What is to be merged or removed, besides what is in plans already."""
    taken = {
        path
        for state in snapshot.plans
        for path in (*state.plan.paths, state.plan.target)
        if path is not None
    }
    now = datetime.fromtimestamp(now_ns / _NS, UTC)
    by_directory: dict[str, list[LakeFile]] = defaultdict(list)
    for file in snapshot.files.values():
        if file.path not in taken and (file.is_compacted or file.path in snapshot.sources):
            by_directory[file.directory].append(file)
    for directory, files in sorted(by_directory.items()):
        end = end_of(directory)
        if end is None:
            continue
        if is_expired(directory, now, policy.max_age_s):
            yield Plan.of(directory, files, merges=False)
        elif policy.merges and end + timedelta(seconds=policy.after_s) <= now:
            oldest_ns = now_ns - round(policy.after_s * _NS)
            small = [
                it
                for it in files
                if it.size < policy.target_bytes
                and it.modified_ns <= oldest_ns
                and it.path in snapshot.sources
            ]
            for group in groups(small, snapshot.sources, policy.target_bytes):
                yield Plan.of(directory, group, merges=True)


def is_expired(directory: str, now: datetime, max_age_s: float | None) -> bool:
    """Whether a partition is past its retention."""
    end = end_of(directory)
    return (
        max_age_s is not None and end is not None and end.timestamp() + max_age_s <= now.timestamp()
    )


def groups(
    files: Sequence[LakeFile], sources: Mapping[str, Source], target_bytes: int
) -> Iterator[list[LakeFile]]:
    """Which of a partition's small files become one file each; several of two files at least.

    A file that compaction made is merged again only with as much as makes it worth it.
    """
    bins: list[_Bin] = []
    for file in sorted(files, key=lambda it: it.path):
        source = sources[file.path]
        fitting = (it for it in bins if it.takes(file, source, target_bytes))
        found = next(fitting, None)
        if found is None:
            found = _Bin(source.owner)
            bins.append(found)
        found.add(file, source)
    for it in bins:
        if it.is_worth_it():
            yield it.files


class _Bin:
    """Files that may become one."""

    def __init__(self, owner: str) -> None:
        self.files: list[LakeFile] = []
        self._owner = owner
        self._size = 0
        self._ids: dict[str, str] = {}

    def takes(self, file: LakeFile, source: Source, target_bytes: int) -> bool:
        """Whether a file fits: a merged file has one id of each stream, so that rows are known."""
        if source.owner != self._owner or len(self.files) >= SOURCES_MAX:
            return False
        if any(self._ids.get(it.stream, it.stream_id) != it.stream_id for it in source.spans):
            return False
        return self._size + file.size <= target_bytes

    def add(self, file: LakeFile, source: Source) -> None:
        """It is one of them."""
        self.files.append(file)
        self._size += file.size
        self._ids.update((it.stream, it.stream_id) for it in source.spans)

    def is_worth_it(self) -> bool:
        """Whether so much is gained that the rows are written again."""
        if len(self.files) < 2:
            return False
        merged = sum(it.size for it in self.files if it.is_compacted)
        others = [it.size for it in self.files if not it.is_compacted]
        if not merged or not others:
            return True
        return len(others) >= _LATE_FILES_MAX or 2 * sum(others) >= merged
