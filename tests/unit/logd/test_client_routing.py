"""Where a client's calls go: one logd, a cluster, and a cluster that changes under them."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.logd.api.models import StreamList
from penstock.logd.api.operations import Fetch
from penstock.logd.client import ClusterInfo, NodeInfo, PartitionInfo, Prefer, StreamInfo, calls
from penstock.logd.client.calls import Call
from penstock.logd.client.routing import REPLICA_S, CallAttempt, MetadataCache, NextAction
from penstock.logd.errors import RefusedError, UnavailableError, UnsettledError

NAMES = ("a", "b", "c")
ALL = ",".join(f"{name}:1" for name in NAMES)


@dataclass
class World:
    """Nodes of a cluster, one partition, and a client's calls; time passes by pauses only.

    Attributes:
        leader: Who leads; the others say `believed`.
        changes: What happens at which time.
        asked: Steps taken: address, api, whether a replica will do.
        refuse: What the leader refuses fetches with.
    """

    leader: str | None = "a"
    believed: str | None = "a"
    clustered: bool = True
    up: set[str] = field(default_factory=lambda: set(NAMES))
    isr: tuple[str, ...] = NAMES
    racks: dict[str, str] = field(default_factory=dict)
    changes: list[tuple[float, Callable[["World"], None]]] = field(default_factory=list)
    asked: list[tuple[str, str, bool]] = field(default_factory=list)
    refuse: dict[str, RefusedError] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)
    unready: set[str] = field(default_factory=set)
    now_s: float = 0.0

    def call(self, router: MetadataCache, call: Call[Any]) -> object:
        """Make a call; who answered it."""
        course = CallAttempt(router, call, self._now_ns())
        while True:
            step = course.step(self._now_ns())
            self.now_s += step.pause_s
            while self.changes and self.changes[0][0] <= self.now_s:
                self.changes.pop(0)[1](self)
            assert len(self.asked) < 1000, self.asked[-10:]
            self.asked.append((step.address[0], step.call.request["api"], step.replica))
            self.now_s += 0.001
            try:
                answer = self.answer(step)
            except RefusedError as error:
                course.refused(step, error, self._now_ns())
            except OSError as error:
                sent = step.address[0] in self.cut
                course.failed(step, error, sent=sent, reused=False, now_ns=self._now_ns())
            else:
                if course.answered(step, answer, self._now_ns()):
                    return answer

    def fetch(self, router: MetadataCache, offset: int = 0) -> object:
        return self.call(
            router,
            calls.fetch(Fetch(stream="s", offset=offset, partition=0, bytes_max=1), where=""),
        )

    def apis(self) -> list[str]:
        """What was asked since the last time, as `a fetch`."""
        found = [f"{name} {api}{' *' * replica}" for name, api, replica in self.asked]
        self.asked.clear()
        return found

    def _now_ns(self) -> int:
        return int(self.now_s * 1e9)

    def answer(self, step: NextAction) -> object:
        name = step.address[0]
        if name not in self.up:
            raise ConnectionRefusedError
        if name in self.cut:
            raise ConnectionResetError
        if name in self.unready:
            raise RefusedError("NOT_READY", "it has just started")
        match step.call.request["api"]:
            case "cluster":
                return self._info(name)
            case "streams" if "streams" in self.refuse:
                raise self.refuse["streams"]
            case "streams":
                return StreamList(name, [stream(part(self.believed, self.isr))])
            case "fetch" | "get_cursor" | "delete_cursor" if name in self.refuse:
                raise self.refuse[name]
            case "fetch" | "get_cursor" | "delete_cursor" if not self._has(name, step):
                leader = self.believed or ""
                raise RefusedError("NOT_HERE", "elsewhere", leader=leader, replicas="a,b,c")
        return name

    def _has(self, name: str, step: NextAction) -> bool:
        return name == self.leader or not self.clustered or step.replica

    def _info(self, name: str) -> ClusterInfo:
        if not self.clustered:
            return ClusterInfo(cluster=None, controller=name, node=name, nodes=())
        nodes = tuple(
            NodeInfo(
                node=one, fetch=f"{one}:1", admin="", rack=self.racks.get(one, ""),
                live=one in self.up,
            )
            for one in NAMES
        )  # fmt: skip
        return ClusterInfo(cluster="demo", controller=self.believed, node=name, nodes=nodes)


def part(leader: str | None, isr: tuple[str, ...]) -> PartitionInfo:
    names = ("start_offset", "high_watermark", "end_offset", "epoch", "size_bytes")
    known: dict[str, Any] = dict.fromkeys(names, -1)
    return PartitionInfo(partition=0, leader=leader, replicas=NAMES, isr=isr, **known)


def stream(*parts: PartitionInfo) -> StreamInfo:
    return StreamInfo(name="s", subject="t", incarnation="i", partitions=parts, options={})


def router(
    server: str = ALL, prefer: Prefer = "leader", rack: str = "", seed: int = 1
) -> MetadataCache:
    return MetadataCache(server, prefer=prefer, rack=rack, timeout_s=10, rng=random.Random(seed))


def elect(name: str | None) -> Callable[[World], None]:
    def change(world: World) -> None:
        world.leader = world.believed = name

    return change


def test_a_lone_logd_is_asked_once_who_there_is_and_never_before_the_first_answer() -> None:
    world, found = World(clustered=False), router("a:1")
    for _ in range(3):
        assert world.fetch(found) == "a"
    assert world.apis() == ["a fetch", "a cluster", "a fetch", "a fetch"]
    world.up.clear()
    with pytest.raises(UnavailableError, match="a:1 cannot be reached"):
        world.fetch(found)
    assert world.apis() == ["a fetch"]


def test_calls_that_name_nodes_find_them_though_they_are_the_first_and_at_the_same_time() -> None:
    found = router("a:1")
    world = World()
    attempts = {node: CallAttempt(found, calls.gaps(node), 0) for node in ("b", "c")}
    steps = {node: attempt.step(0) for node, attempt in attempts.items()}
    assert [step.call.request["api"] for step in steps.values()] == ["cluster", "cluster"]
    reached = {}
    for node, step in steps.items():
        attempts[node].answered(step, world.answer(step), 0)
        reached[node] = attempts[node].step(0).address
    assert reached == {"b": "b:1", "c": "c:1"}


def test_a_logd_that_does_not_know_the_question_is_taken_for_a_lone_one() -> None:
    world, found = World(clustered=False), router("a:1")
    world.fetch(found)
    course = CallAttempt(found, calls.match("t"), 0)
    step = course.step(0)
    assert step.call.request["api"] == "cluster"
    course.refused(step, RefusedError("UNKNOWN_API", "what?"), 0)
    assert course.step(0).call.request["api"] == "match"
    assert CallAttempt(found, calls.match("t"), 0).step(0).call.request["api"] == "match"


def test_the_first_address_that_answers_is_taken() -> None:
    world, found = World(clustered=False, up={"c"}), router()
    assert world.fetch(found) == "c"
    assert world.fetch(found) == "c"
    assert world.apis() == ["a fetch", "b fetch", "c fetch", "c cluster", "c fetch"]
    world.up.clear()
    with pytest.raises(UnavailableError, match="cannot be reached"):
        world.fetch(found)
    assert world.apis() == ["c fetch", "a fetch", "b fetch"]


def test_a_call_goes_where_the_refusal_says_and_there_at_once_the_next_time() -> None:
    world, found = World(leader="b", believed="b"), router("a:1")
    assert world.call(found, calls.match("t")) == "a"
    assert world.fetch(found) == "b"
    assert world.fetch(found) == "b"
    assert world.apis() == ["a match", "a cluster", "a fetch", "b fetch", "b fetch"]
    assert world.now_s < 0.02, "without a pause"


def test_a_client_that_knows_nobody_asks_before_it_goes_elsewhere() -> None:
    world, found = World(leader="b", believed="b"), router("a:1")
    assert world.fetch(found) == "b"
    assert world.apis() == ["a fetch", "a cluster", "a streams", "b fetch"]


def test_a_call_waits_for_the_next_leader() -> None:
    world, found = World(), router("a:1")
    world.fetch(found)
    world.fetch(found)
    world.up.remove("a")
    world.changes = [(2.0, elect("c"))]
    assert world.fetch(found) == "c"
    assert 2.0 <= world.now_s < 3.0
    world.apis()
    assert world.fetch(found) == "c"
    assert world.apis() == ["c fetch"]


def test_a_call_gives_up_when_its_time_is_over() -> None:
    for leader, believed in ((None, None), (None, "b")):
        world, found = World(), router("a:1")
        world.fetch(found)
        world.fetch(found)
        world.leader, world.believed = leader, believed
        world.up.discard("a")
        with pytest.raises(UnavailableError):
            world.fetch(found)
        assert 10 <= world.now_s < 11
        assert len(world.asked) < 150


def test_what_may_have_been_done_is_not_done_again() -> None:
    world, found = World(), router()
    delete = calls.delete_cursor("c", "s", 0)
    world.call(found, delete)
    world.call(found, delete)
    world.up.remove("a")
    world.leader = world.believed = "b"
    assert world.call(found, delete) == "b", "it was never sent"
    world.cut.add("b")
    world.apis()
    with pytest.raises(UnavailableError):
        world.call(found, delete)
    assert world.apis() == ["b delete_cursor"]


def test_an_offset_that_a_new_leader_does_not_know_to_be_committed_yet_is_waited_for() -> None:
    world, found = World(), router()
    world.fetch(found)
    world.fetch(found)
    written = RefusedError("OUT_OF_RANGE", "", earliest=0, latest=5, end_offset=9)
    world.refuse["a"] = written
    world.changes = [(1.0, lambda world: world.refuse.clear())]
    assert world.fetch(found, 9) == "a"
    world.refuse["a"], world.now_s = written, 0.0
    with pytest.raises(RefusedError):
        world.fetch(found, 10)
    assert world.now_s < 0.1, "nobody has that"
    with pytest.raises(UnsettledError):
        world.fetch(found, 8)


def test_fetches_go_to_a_replica_in_sync_where_that_is_preferred() -> None:
    world, found = World(isr=("a", "b")), router("a:1", "replica")
    assert world.fetch(found) == "b"
    assert world.apis() == ["a cluster", "a streams", "b fetch *"]
    assert world.fetch(found) == "b"
    world.call(found, calls.offsets("s", 0))
    assert world.apis() == ["b fetch *", "a offsets"]
    world.isr = ("a", "c")
    world.now_s += REPLICA_S
    assert world.fetch(found) == "c"
    world.isr = ("a",)
    world.now_s += REPLICA_S
    assert world.fetch(found) == "a"
    assert world.fetch(found) == "a"


@pytest.mark.parametrize("code", ["OUT_OF_RANGE", "RECORDS_LOST", "CORRUPT"])
def test_the_leader_has_the_last_word_on_an_offset(code: str) -> None:
    world, found = World(isr=("a", "b")), router("a:1", "replica")
    world.refuse["b"] = RefusedError(code, "", offset=4, earliest=0, latest=5, end_offset=5)
    assert (world.fetch(found, 7), world.apis()[2:]) == ("a", ["b fetch *", "a fetch"])


def test_a_replica_that_is_lost_or_has_lost_it_is_left() -> None:
    world, found = World(isr=("a", "b")), router("a:1", "replica")
    world.fetch(found)
    world.refuse["b"] = RefusedError("NOT_HERE", "moved", leader="a", replicas="a,c")
    assert world.fetch(found) == "a"
    world.refuse.clear()
    world.up.remove("b")
    world.isr = ("a", "c")
    assert world.fetch(found) == "c"


@pytest.mark.parametrize("seed", range(5))
def test_a_replica_in_the_same_rack_is_taken_first(seed: int) -> None:
    world = World(leader="b", believed="b", racks={"a": "r1", "b": "r2", "c": "r2"})
    assert world.fetch(router("a:1", "replica", "r2", seed)) == "c"
    assert world.fetch(router("a:1", "replica", "r3", seed)) in ("a", "c")


def test_a_lone_logd_is_read_from_whatever_is_preferred() -> None:
    world, found = World(clustered=False), router("a:1", "replica")
    assert world.fetch(found) == "a"
    assert world.fetch(found) == "a"
    assert world.apis() == ["a cluster", "a fetch", "a fetch"]


def test_what_was_not_learned_is_asked_by_the_next() -> None:
    world, found = World(), router("a:1")
    world.fetch(found)
    course = CallAttempt(found, calls.match("t"), 0)
    assert course.step(0).call.request["api"] == "cluster"
    course.abandoned()
    world.apis()
    world.fetch(found)
    assert world.apis() == ["a cluster", "a fetch"]


def test_who_there_is_is_asked_again_when_the_answer_was_lost() -> None:
    world, found = World(clustered=False), router("a:1")
    world.fetch(found)
    world.up.clear()
    with pytest.raises(UnavailableError):
        world.fetch(found)
    world.up.add("a")
    world.apis()
    world.fetch(found)
    assert world.apis() == ["a cluster", "a fetch"]


def test_a_question_that_leads_nowhere_is_not_asked_again() -> None:
    world, found = World(), router("a:1", "replica")
    other = calls.fetch(Fetch(stream="s", offset=0, partition=5, bytes_max=1), where="")
    assert world.call(found, other) == "a"
    assert world.apis() == ["a cluster", "a streams", "a fetch"]
    world.refuse["streams"] = RefusedError("UNKNOWN_STREAM", "none")
    assert world.call(found, other) == "a"
    assert world.apis() == ["a streams", "a fetch"]


@pytest.mark.parametrize("seed", range(5))
def test_a_replica_is_kept_while_it_is_in_sync(seed: int) -> None:
    world, found = World(), router("a:1", "replica", seed=seed)
    chosen = set()
    for _ in range(8):
        chosen.add(world.fetch(found))
        world.now_s += REPLICA_S
    assert len(chosen) == 1


def test_a_node_is_reached_where_it_was_reached_before() -> None:
    found = router("10.0.0.1:1")
    nodes = tuple(NodeInfo(node=name, fetch=f"{name}:1", admin="") for name in NAMES)
    info = ClusterInfo(cluster="demo", controller="a", node="a", nodes=nodes)
    found.take_cluster(info, "10.0.0.1:1")
    addresses = [
        found.step(calls.describe(node=name), replica=False, pause_s=0).address for name in NAMES
    ]
    assert addresses == ["10.0.0.1:1", "b:1", "c:1"]
    with pytest.raises(RefusedError, match="nobody knows"):
        found.step(calls.describe(node="d"), replica=False, pause_s=0)


def changes_of(seed: int) -> list[tuple[float, Callable[[World], None]]]:
    rng = random.Random(seed)

    def change(world: World) -> None:
        match rng.randrange(5):
            case 0:
                world.leader = rng.choice([None, *NAMES])
            case 1:
                world.believed = rng.choice([None, *NAMES])
            case 2:
                world.up = {name for name in NAMES if rng.random() < 0.7}
            case 3:
                world.cut = {name for name in NAMES if rng.random() < 0.3}
            case _:
                world.believed = world.leader

    return [(at / 10, change) for at in sorted(rng.randrange(150) for _ in range(30))]


@given(st.integers(0, 2**32), st.sampled_from(["leader", "replica"]))
def test_in_a_cluster_that_changes_every_call_is_answered_or_ends_in_time(
    seed: int, prefer: Prefer
) -> None:
    world, found = World(), router(ALL, prefer, seed=seed)
    world.fetch(found)
    world.call(found, calls.match("t"))
    world.changes = changes_of(seed)
    for _ in range(6):
        began, world.asked = world.now_s, []
        try:
            answered = world.fetch(found)
        except UnavailableError:
            assert world.now_s - began >= 10
        else:
            assert answered == world.leader or world.asked[-1][2]
        assert world.now_s - began < 11
        assert len(world.asked) < 200
    world.up, world.cut, world.leader, world.believed = set(NAMES), set(), "c", "c"
    world.changes = []
    assert world.fetch(found) == "c" or world.asked[-1][2]


def test_a_node_that_does_not_know_yet_what_there_is_is_passed_over() -> None:
    world = World(unready={"a"})
    assert world.call(router(), calls.delete_stream("s")) == "b"
    assert world.apis()[:2] == ["a delete_stream", "b delete_stream"]
    world = World(unready=set(NAMES), changes=[(3.0, lambda it: it.unready.clear())])
    assert world.fetch(router("a:1")) == "a", "it is asked again when there is no other"
    with pytest.raises(UnsettledError, match="just started"):
        World(unready=set(NAMES)).call(router(), calls.delete_stream("s"))
