"""Liftbridge's API of a cluster: any node is asked, and leaders are lost."""

import threading
from collections.abc import Iterator
from contextlib import suppress

import grpc
import pytest
from grpc import StatusCode
from typing_extensions import override

from tests.support.liftbridge import (
    ALL,
    EARLIEST,
    OFFSET,
    STOP_LATEST,
    Fields,
    LiftbridgeCalls,
    grpc_address,
    run_python_liftbridge,
    values,
)
from tests.support.logd_cluster import LogdCluster
from tests.support.nats_server import running_nats_server
from tests.support.protobuf_bytes import decode, one
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogdCluster]:
    section = {"listen": "127.0.0.1:0", "consumer_timeout_s": 10, "publish_timeout_s": 60}
    directory = tmp_path_factory.mktemp("cluster")
    with (
        running_nats_server(directory / "nats") as url,
        LogdCluster(directory, url, grpc=section) as running,
    ):
        yield running


@pytest.fixture
def nodes(cluster: LogdCluster) -> Iterator[dict[str, LiftbridgeCalls]]:
    for name in set(cluster.names) - set(cluster.running()):
        cluster.nodes[name].daemon.start()
    opened = {name: LiftbridgeCalls(grpc_address(node)) for name, node in cluster.nodes.items()}
    # One that has just started does not know yet what there is, and says so.
    wait_until(lambda: all(map(knows_all, opened.values())), what="every node knows the others")
    yield opened
    for calls in opened.values():
        calls.channel.close()


def knows_all(calls: LiftbridgeCalls) -> bool:
    try:
        return len(calls.call("FetchMetadata", {1: ["none"]}, timeout_s=5)[1]) == 3
    except grpc.RpcError:
        return False


def others(cluster: LogdCluster, stream: str) -> tuple[str, str, str]:
    """The leader of a stream, and the other nodes."""
    leader = cluster.leader(stream)
    return leader, *sorted(set(cluster.names) - {leader})  # type: ignore[return-value]


def leader_of(calls: LiftbridgeCalls, stream: str) -> tuple[str, str]:
    """The leader's name and address, as a client finds it."""
    metadata = calls.call("FetchMetadata", {1: [stream]}, timeout_s=5)
    brokers = [decode(item) for item in metadata[1]]
    (found,) = [decode(item) for item in metadata[2]]
    (partition,) = [decode(decode(item)[2][0]) for item in found[4]]
    name = one(partition, 2, b"").decode()
    places = {one(b, 1).decode(): f"{one(b, 2).decode()}:{one(b, 3)}" for b in brokers}
    return name, places.get(name, "")


PROGRAM = """
lift.create_stream(Stream(subject="python", name="python", max_replication=True))
for number in range(3):
    lift.publish(Message(value=str(number), stream="python"))
print(len(lift.fetch_metadata().brokers))
"""
READ = """
for message in lift.subscribe(Stream(subject="python", name="python").start_at_offset(1)):
    print(message.offset, message.value.decode())
    if message.offset == 2:
        break
"""


def test_python_liftbridge_works_with_a_cluster(
    cluster: LogdCluster, nodes: dict[str, LiftbridgeCalls]
) -> None:
    del nodes
    assert run_python_liftbridge(PROGRAM, grpc_address(cluster.nodes["a"])) == ["3"]
    leader, follower, _ = others(cluster, "python")
    more = 'print(lift.publish(Message(value="3", stream="python").ack_policy_all()).ack.offset)'
    assert run_python_liftbridge(more, grpc_address(cluster.nodes[follower])) == ["3"]
    lines = run_python_liftbridge(READ, grpc_address(cluster.nodes[leader]))
    assert lines == ["0 ", "1 1", "2 2"]


def test_every_node_takes_publishes_and_names_the_leader(
    cluster: LogdCluster, nodes: dict[str, LiftbridgeCalls]
) -> None:
    fields = {1: "any", 2: "any", 4: 3, 5: 2, 16: {1: 2}}
    nodes["b"].call("CreateStream", fields)
    assert nodes["c"].status("CreateStream", fields) is StatusCode.ALREADY_EXISTS
    too_many = {1: "more", 2: "more", 4: 9}
    assert nodes["a"].status("CreateStream", too_many) is not StatusCode.OK
    for number, calls in enumerate(nodes.values()):
        acks = [calls.publish("any", b"%d" % number, {4: part, 8: ALL}) for part in (0, 1)]
        assert [one(ack, 4, 0) for ack in acks] == [number, number]
        assert [one(ack, 2) for ack in acks] == [b"any", b"any.1"]
    leader, follower, _ = others(cluster, "any")
    refused = nodes[follower].subscribe("any", {3: EARLIEST})
    assert (refused.stands, refused.code) == (False, StatusCode.FAILED_PRECONDITION)
    partition = {1: "any", 2: 0}
    assert nodes[follower].status("FetchPartitionMetadata", partition) is (
        StatusCode.FAILED_PRECONDITION
    )
    standing = decode(nodes[leader].call("FetchPartitionMetadata", partition)[1][0])
    assert (one(standing, 5), one(standing, 6)) == (2, 2)
    replica = nodes[follower].subscribe("any", {3: EARLIEST, 6: True})
    for subscription in (nodes[leader].subscribe("any", {3: EARLIEST}), replica):
        assert values(subscription.take(3)) == [b"0", b"1", b"2"]
        subscription.cancel()


def test_a_stream_is_paused_and_made_read_only(nodes: dict[str, LiftbridgeCalls]) -> None:
    calls = nodes["a"]
    calls.call("CreateStream", {1: "modes", 2: "modes", 4: 3})
    calls.call("PauseStream", {1: "modes"})
    assert one(calls.publish("modes", b"woken"), 4, 0) == 0
    _, address = leader_of(calls, "modes")
    with LiftbridgeCalls(address) as leading:
        reading = leading.subscribe("modes", {3: EARLIEST})
        calls.call("SetStreamReadonly", {1: "modes", 3: True})

        def is_known_there() -> bool:
            found = leading.call("FetchPartitionMetadata", {1: "modes", 2: 0})
            return bool(one(decode(found[1][0]), 8, 0))

        wait_until(is_known_there, what="the leader, which is another node, has applied it")
        refused = {2: b"x", 3: "modes"}
        assert calls.status("Publish", refused) is StatusCode.FAILED_PRECONDITION
        (answer,) = calls.publish_async([refused | {7: "c"}])
        assert one(decode(answer[2][0]), 1) == 4  # READONLY
        assert values(reading.rest()) == [b"woken"]
        assert reading.code is StatusCode.RESOURCE_EXHAUSTED
    calls.call("SetStreamReadonly", {1: "modes", 3: False})
    assert one(calls.publish("modes", b"again"), 4, 0) == 1


def test_cursors_are_kept_where_the_metadata_says(nodes: dict[str, LiftbridgeCalls]) -> None:
    calls = nodes["b"]
    calls.call("CreateStream", {1: "read", 2: "read", 4: 3})
    for number in range(3):
        calls.publish("read", b"%d" % number)
    wait_until(lambda: leader_of(calls, "__cursors")[1], what="a leader of the cursors")
    _, address = leader_of(calls, "__cursors")
    cursor = {1: "read", 3: "__group:billing"}
    with LiftbridgeCalls(address) as keeping:
        assert one(keeping.call("FetchCursor", cursor), 1) == 2**64 - 1  # -1: none
        for offset in (2, 1):
            keeping.call("SetCursor", cursor | {4: offset})
            assert one(keeping.call("FetchCursor", cursor), 1) == offset
        assert keeping.status("SetCursor", cursor | {4: -1}) is StatusCode.INVALID_ARGUMENT
        assert keeping.status("SetCursor", {1: "read"}) is StatusCode.INVALID_ARGUMENT
        assert keeping.status("FetchCursor", {1: "gone", 3: "x"}) is StatusCode.NOT_FOUND
    codes = {node.status("FetchCursor", cursor) for node in nodes.values()}
    assert codes == {StatusCode.OK, StatusCode.FAILED_PRECONDITION}


def assigned(calls: LiftbridgeCalls, member: str) -> tuple[int, set[int]]:
    """What a member is to read, asked as its heartbeat."""
    answer = calls.call("FetchConsumerGroupAssignments", {1: "billing", 2: member, 3: 1})
    numbers: set[int] = set()
    for item in answer.get(2, []):
        packed = one(decode(item), 2)
        numbers |= set(packed if isinstance(packed, bytes) else [packed])
    return one(answer, 1), numbers


def test_members_of_a_group_share_its_partitions(nodes: dict[str, LiftbridgeCalls]) -> None:
    calls, other = nodes["a"], nodes["b"]
    calls.call("CreateStream", {1: "shared", 2: "shared", 4: 3, 5: 4})
    assert calls.status("JoinConsumerGroup", {1: "g", 2: "one"}) is StatusCode.INVALID_ARGUMENT
    unknown = {1: "g", 2: "one", 3: ["gone"]}
    assert calls.status("JoinConsumerGroup", unknown) is StatusCode.NOT_FOUND
    asked = {1: "billing", 2: "one", 3: 1}
    assert calls.status("FetchConsumerGroupAssignments", asked) is StatusCode.NOT_FOUND
    joined = calls.call("JoinConsumerGroup", {1: "billing", 2: "one", 3: ["shared"]})
    assert one(joined, 1).decode() in nodes
    assert (one(joined, 3), one(joined, 4)) == (10 * 10**9, 10 * 10**9)
    wait_until(lambda: assigned(calls, "one")[1] == {0, 1, 2, 3}, what="everything for one")
    other.call("JoinConsumerGroup", {1: "billing", 2: "two", 3: ["shared"]})

    def shared() -> bool:
        mine, theirs = assigned(calls, "one")[1], assigned(other, "two")[1]
        assert not mine & theirs
        return len(mine) == len(theirs) == 2

    wait_until(shared, what="two partitions each")
    epoch, numbers = assigned(other, "one")  # another node is asked: nothing is lost by it
    assert len(numbers) == 2
    metadata = calls.call("FetchMetadata", {1: ["shared"], 2: ["billing", "none"]})
    found = [decode(item) for item in metadata[3]]
    assert [(one(item, 1), one(item, 2, 0)) for item in found] == [(b"billing", 0), (b"none", 1)]
    assert one(found[0], 4) >= epoch
    report = {1: "billing", 2: "one", 3: "a", 4: epoch}
    assert calls.call("ReportConsumerGroupCoordinator", report) == {}
    calls.call("LeaveConsumerGroup", {1: "billing", 2: "one"})
    wait_until(lambda: assigned(other, "two")[1] == {0, 1, 2, 3}, what="everything for two")
    # Two says nothing more: it is no member any longer.
    calls.call("JoinConsumerGroup", {1: "billing", 2: "three", 3: ["shared"]})
    wait_until(lambda: assigned(calls, "three")[1] == {0, 1, 2, 3}, what="everything for three")
    gone = {1: "billing", 2: "two", 3: 1}
    assert other.status("FetchConsumerGroupAssignments", gone) is StatusCode.FAILED_PRECONDITION


class Follower(threading.Thread):
    """Reads a stream as Liftbridge's clients do: elsewhere from the next offset on UNAVAILABLE."""

    def __init__(self, nodes: dict[str, LiftbridgeCalls], stream: str, count: int) -> None:
        super().__init__()
        self.codes: list[StatusCode | None] = []
        self.found: list[Fields] = []
        self._nodes, self._stream, self._count = nodes, stream, count

    @override
    def run(self) -> None:
        while len(self.found) < self._count:
            for calls in self._nodes.values():
                with suppress(grpc.RpcError):
                    self._read(calls)

    def _read(self, calls: LiftbridgeCalls) -> None:
        position = {3: OFFSET, 4: len(self.found)}
        subscription = calls.subscribe(self._stream, position)
        while subscription.stands and len(self.found) < self._count:
            try:
                self.found += subscription.take(1)
            except (StopIteration, RuntimeError):
                break
        subscription.cancel()
        if subscription.stands:
            self.codes.append(subscription.code)


def test_nothing_is_lost_or_doubled_when_the_leader_is_killed(
    cluster: LogdCluster, nodes: dict[str, LiftbridgeCalls]
) -> None:
    nodes["a"].call("CreateStream", {1: "hard", 2: "hard", 4: 3})
    cluster.wait_in_sync("hard")
    leader, follower, _ = others(cluster, "hard")
    staying = {name: calls for name, calls in nodes.items() if name != leader}
    reader = Follower({leader: nodes[leader]} | staying, "hard", 400)
    reader.start()
    requests = ({2: b"%d" % n, 3: "hard", 7: str(n)} for n in range(300))
    answers: list[Fields] = []
    publisher = threading.Thread(
        target=lambda: answers.extend(nodes[follower].publish_async(requests))
    )
    for number in range(100):
        nodes[follower].publish("hard", b"before %d" % number)
    publisher.start()
    cluster.nodes[leader].daemon.kill()
    publisher.join(120)
    reader.join(120)
    assert not publisher.is_alive()
    assert not reader.is_alive()
    assert [answer for answer in answers if 2 in answer] == [], "every publish was acked"
    stored = values(reader.found)
    assert sorted(stored[100:], key=int) == [b"%d" % n for n in range(300)]
    assert stored[:100] == [b"before %d" % number for number in range(100)]
    assert StatusCode.RESOURCE_EXHAUSTED not in reader.codes
    offsets = {one(answer, 3): one(decode(answer[1][0]), 4) for answer in answers}
    assert offsets == {value: 100 + place for place, value in enumerate(stored[100:])}
    ends = nodes[follower].call("FetchMetadata", {1: ["hard"]})
    assert len(ends[1]) == 2, "the node that is gone is no broker to dial"
    replica = nodes[follower].subscribe("hard", {3: EARLIEST, 6: True, 8: STOP_LATEST})
    assert len(replica.rest()) == 400
