"""Lakes with one rule broken, which the world must find out."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import pytest

from penstock.router.lake import index, plan, store
from penstock.router.lake.layout import LakeFile, Source
from penstock.router.lake.merged_rows import MergedRows
from penstock.router.lake.plan import Plan, PlanState, Policy, Snapshot, Step
from penstock.router.lake.store import LakeStore
from tests.sim import lake_world

_next_step: Final = plan.next_step
_groups: Final = plan.groups


def shows_both(patch: pytest.MonkeyPatch) -> None:
    """A merged file appears before its sources go."""

    def show(its: LakeStore, shown: Plan) -> None:
        if shown.hidden in its.hidden() and shown.target is not None:
            its.copy(str(shown.hidden), shown.target)
        store.show_one_by_one(its, shown)

    patch.setattr(lake_world, "show_one_by_one", show)


def is_hasty(patch: pytest.MonkeyPatch) -> None:
    """Sources go before readers of the index are done."""

    def hasty(state: PlanState, snapshot: Snapshot, now_ns: int, policy: Policy) -> Step | None:
        return _next_step(state, snapshot, now_ns, replace(policy, keep_s=0.0))

    patch.setattr(plan, "next_step", hasty)


def lists_only(patch: pytest.MonkeyPatch) -> None:
    """Readers of the index get what a listing finds."""

    def live(files: Iterable[str], plans: Iterable[PlanState]) -> list[str]:
        del plans
        return sorted(files)

    patch.setattr(index, "live_files", live)


def mixes_ids(patch: pytest.MonkeyPatch) -> None:
    """Files of two ids of one stream are merged."""

    def mixed(
        files: Sequence[LakeFile], sources: Mapping[str, Source], target_bytes: int
    ) -> Iterator[list[LakeFile]]:
        one = {
            path: Source(it.owner, tuple(replace(span, stream_id="") for span in it.spans))
            for path, it in sources.items()
        }
        yield from _groups(files, one, target_bytes)

    patch.setattr(plan, "groups", mixed)


def cancels_nothing(patch: pytest.MonkeyPatch) -> None:
    """Sinks publish and remove what is about to be merged."""
    patch.setattr(MergedRows, "cancel_plans", lambda *_: None)


TWINS: Final[Sequence[Callable[[pytest.MonkeyPatch], None]]] = (
    shows_both, is_hasty, lists_only, mixes_ids,
)  # fmt: skip
"""Those that some seed finds out; `cancels_nothing` takes a moment that is rare."""


def before_the_decision(patch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """Have something happen in the moment before the first merge is decided."""
    real, is_first = index.LakeIndex.decide, True

    def decide(
        its: index.LakeIndex, decided: Plan, decision: plan.Decision, now_ns: int
    ) -> plan.Decision:
        nonlocal is_first
        if decision == "merged" and is_first:
            is_first = False
            happens()
        return real(its, decided, decision, now_ns)

    patch.setattr(index.LakeIndex, "decide", decide)
