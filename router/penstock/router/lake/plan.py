"""Plans that merge or remove files of a lake, and the next step of each; no I/O.

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

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal, Self

from penstock.router.lake.layout import COMPACTED, HIDDEN, LakeFile, Source, end_of

SOURCES_MAX: Final = 2000
"""Files that one plan merges."""

PLANS_MAX: Final = 200
"""Plans that are on their way at a time: each pass, and each sink's batch, looks at all of them."""

_LATE_FILES_MAX: Final = 8
"""Number of small files that are merged with a compacted one, however small they are."""

_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Plan:
    """Files that are replaced by one, or removed.

    Attributes:
        id: Its name. It tells sources from others of the same names.
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
        told = "\n".join(f"{it.path} {it.size} {it.modified_ns}" for it in chosen)
        plan_id = hashlib.sha256(told.encode()).hexdigest()[:32]
        return cls(plan_id, directory, chosen, merges)

    @property
    def paths(self) -> list[str]:
        return [it.path for it in self.sources]

    @property
    def target(self) -> str | None:
        """Final path of the merged file; None: the plan only removes."""
        return f"{self.directory}/{COMPACTED}{self.id}.parquet" if self.merges else None

    @property
    def hidden(self) -> str | None:
        """Path of the merged file before it is shown; None: the plan only removes.

        No glob for `.parquet` finds it.
        """
        return f"{HIDDEN}/{self.directory}/{self.id}.merged" if self.merges else None


Decision = Literal["merged", "cancelled"]


@dataclass(frozen=True, slots=True)
class PlanState:
    """A plan, and how far it is.

    Attributes:
        created_ns: Unix time of its creation, by the creating process's clock.
        decision: The decision; None: there is none yet.
        decided_ns: Unix time of the decision, by the deciding process's clock.
        shown_ns: Unix time when it was shown, likewise; None: it is not.
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
        sources: Records of those files for which they are known.
    """

    files: Mapping[str, LakeFile]
    hidden: frozenset[str]
    plans: tuple[PlanState, ...]
    sources: Mapping[str, Source]


@dataclass(frozen=True, slots=True)
class Policy:
    """Rules of merging and removal.

    Attributes:
        target_bytes: Files of this size are left alone; merged ones are about as large.
        after_s: Seconds between the end of a partition's time and its merge.
        keep_s: Seconds for which replaced files stay readable for readers that opened them.
        max_age_s: Seconds after the end of its time at which a partition is removed; None: never.
        merges: Whether files are merged at all.
    """

    target_bytes: int
    after_s: float
    keep_s: float
    max_age_s: float | None = None
    merges: bool = True


DEFAULTS: Final = Policy(target_bytes=128 * 1024 * 1024, after_s=900.0, keep_s=900.0)
"""What holds where neither a job's file nor a command says otherwise."""


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
    """Return the steps that may be done now: one for each plan, and new plans."""
    found: list[Step] = []
    for state in snapshot.plans:
        step = next_step(state, snapshot, now_ns, policy)
        if step is not None:
            found.append(step)
    mine = {state.plan.hidden for state in snapshot.plans}
    found += [RemoveHidden(path) for path in sorted(snapshot.hidden) if path not in mine]
    room = max(PLANS_MAX - len(snapshot.plans), 0)
    return found + [Create(it) for it in islice(new_plans(snapshot, now_ns, policy), room)]


def next_step(state: PlanState, snapshot: Snapshot, now_ns: int, policy: Policy) -> Step | None:
    """Return the next step of a plan; None: it has to wait."""
    plan = state.plan
    keep_ns = round(policy.keep_s * _NS)
    if state.decision == "cancelled":  # its name may be needed again, by no process that is late
        return Forget(plan) if now_ns >= state.decided_ns + keep_ns else None
    if state.decision is None:
        # Retention removes its files instead. A damaged one would keep the partition for ever.
        is_late = plan.merges and is_expired(plan.directory, now_ns, policy.max_age_s)
        if is_late or not is_unchanged(plan, snapshot.files):
            return Decide(plan, "cancelled")
        if now_ns < state.created_ns + keep_ns:  # a sink that did not see it may be publishing
            return None
        is_merged = plan.hidden is None or plan.hidden in snapshot.hidden
        return Decide(plan, "merged") if is_merged else Merge(plan)
    if state.shown_ns is None:
        return Show(plan) if now_ns >= state.decided_ns + keep_ns else None
    return Forget(plan) if now_ns >= state.shown_ns + keep_ns else None


def is_unchanged(plan: Plan, files: Mapping[str, LakeFile]) -> bool:
    """Return whether the sources are the same files as when the plan was made."""
    return all(files.get(it.path) == it for it in plan.sources)


def live_files(files: Iterable[str], plans: Iterable[PlanState]) -> list[str]:
    """The paths that hold each record once.

    Args:
        files: Those that a listing found.
        plans: Plans read before that listing and after it.
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
    """Yield new plans for files that are in no plan yet."""
    taken = {
        path
        for state in snapshot.plans
        for path in (*state.plan.paths, state.plan.target)
        if path is not None
    }
    by_directory: dict[str, list[LakeFile]] = defaultdict(list)
    for file in snapshot.files.values():
        if file.path not in taken and (file.is_compacted or file.path in snapshot.sources):
            by_directory[file.directory].append(file)
    for directory, files in sorted(by_directory.items()):
        end = end_of(directory)
        if end is None:
            continue
        if is_expired(directory, now_ns, policy.max_age_s):
            yield Plan.of(directory, files, merges=False)
        elif policy.merges and end.timestamp() + policy.after_s <= now_ns / _NS:
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


def is_expired(directory: str, now_ns: int, max_age_s: float | None) -> bool:
    """Return whether a partition is past its retention."""
    end = end_of(directory)
    return max_age_s is not None and end is not None and end.timestamp() + max_age_s <= now_ns / _NS


def groups(
    files: Sequence[LakeFile], sources: Mapping[str, Source], target_bytes: int
) -> Iterator[list[LakeFile]]:
    """Yield groups of two or more small files of a partition, each of which becomes one file.

    A file that compaction made is merged again only together with enough others.
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
        """Return whether a file fits: a merged file has one id of each stream."""
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
        """Return whether the merge gains enough to rewrite the rows."""
        if len(self.files) < 2:
            return False
        merged = sum(it.size for it in self.files if it.is_compacted)
        others = [it.size for it in self.files if not it.is_compacted]
        if not merged or not others:
            return True
        return len(others) >= _LATE_FILES_MAX or 2 * sum(others) >= merged
