"""Consumer groups under faults: see `groups_world`."""

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.logd.controller.group_messages import Member, MemberBeat
from penstock.logd.controller.groups import GroupCoordinator
from penstock.logd.metadata import node_rules
from penstock.logd.metadata.records import Group
from penstock.logd.metadata.state import ClusterState
from tests.sim.groups_machines import MS
from tests.sim.groups_world import GroupsWorld
from tests.sim.twins import Mutation

SEEDS = int(os.environ.get("PENSTOCK_SIM_SEEDS", "100"))
FIRST_SEED = int(os.environ.get("PENSTOCK_SIM_SEED", "0"))
BLOCKS = 4
TWIN_SEEDS = 400


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_partition_has_two_readers_and_no_position_goes_back(block: int) -> None:
    for seed in range(FIRST_SEED + block, FIRST_SEED + SEEDS, BLOCKS):
        try:
            GroupsWorld(seed).run()
        except AssertionError as error:
            pytest.fail(f"make sim SEED={seed}: {error}")


def test_the_schedules_reach_the_rare_cases() -> None:
    reached: Counter[str] = Counter()
    for seed in range(20):
        world = GroupsWorld(seed)
        world.run()
        reached += world.reached
    assert {
        "CURSOR_BEHIND",
        "FENCED",
        "coordinators",
        "die",
        "grant not known",
        "leave",
        "members fenced",
        "proposals lost",
        "revoked",
        "stream",
    } <= set(reached)


def _grants_before_it_revokes(code: Mutation) -> None:
    code.replace(GroupCoordinator, "_owner", lambda self, before, wanted, members, watch: wanted)
    code.replace(node_rules, "_check_handovers", lambda *_: None)


def _ignores_drift(code: Mutation) -> None:
    code.replace(GroupsWorld, "drift_percent", 0)


def _gives_no_full_session(code: Mutation) -> None:
    code.replace(GroupCoordinator, "_sessions_since", lambda *_: 0)


def _answers_without_a_raft_lease(code: Mutation) -> None:
    code.replace(GroupCoordinator, "_holds_raft_lease", lambda *_: True)
    code.replace(GroupsWorld, "stray_beats", 0.7)
    code.replace(GroupsWorld, "kinds", ("node", "node", "join", "leave"))


def _takes_any_epoch_for_a_release(code: Mutation) -> None:
    def release(really: Any, self: Any, group: Group, watch: Any, beat: MemberBeat) -> None:
        really(self, group, watch, replace(beat, epoch=group.epoch))

    code.wrap(GroupCoordinator, "_release", release)


def _remembers_releases_for_ever(code: Mutation) -> None:
    def change(
        really: Any, self: Any, state: ClusterState, name: str, watch: Any, now_ns: int
    ) -> Any:
        group = state.groups.get(name)
        watch.epoch = group.epoch if group else 0
        return really(self, state, name, watch, now_ns)

    def release(really: Any, self: Any, group: Group, watch: Any, beat: MemberBeat) -> None:
        watch.epoch = group.epoch
        really(self, group, watch, beat)

    code.replace(GroupsWorld, "faults_at_most_ns", 200 * MS)
    code.replace(GroupsWorld, "kinds", ("join", "leave"))
    code.wrap(GroupCoordinator, "_change", change)
    code.wrap(GroupCoordinator, "_release", release)


def _counts_from_receipt(code: Mutation) -> None:
    def answered(really: Any, self: Any, answer: Any, now_ns: int) -> Any:
        if answer.sequence in self._sent_ns:
            self._sent_ns[answer.sequence] = now_ns
        return really(self, answer, now_ns)

    code.wrap(Member, "_answered", answered)


TWINS: dict[str, tuple[Callable[[Mutation], None], int]] = {
    "a partition is granted before it is revoked": (_grants_before_it_revokes, 0),
    "drift is ignored": (_ignores_drift, 42),
    "a new coordinator gives no full session": (_gives_no_full_session, 5),
    "heartbeats are answered without a Raft lease": (_answers_without_a_raft_lease, 29),
    "a release is taken from one who does not know": (_takes_any_epoch_for_a_release, 13),
    "a release counts in later epochs": (_remembers_releases_for_ever, 55),
    "a session counts from the receipt of its answer": (_counts_from_receipt, 5),
}
"""Each with a seed that caught it once: tried first, to save time."""


@pytest.mark.parametrize("twin", TWINS)
def test_a_known_bad_twin_is_caught(twin: str, code: Mutation) -> None:
    spoil, known = TWINS[twin]
    spoil(code)
    for seed in (known, *range(TWIN_SEEDS)):
        try:
            GroupsWorld(seed).run()
        except AssertionError as error:
            print(f"caught by seed {seed}: {error}")  # noqa: T201  # shown with -s
            return
    pytest.fail(f"not caught in {TWIN_SEEDS} seeds")
