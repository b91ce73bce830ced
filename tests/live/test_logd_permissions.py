"""Who may do what at the doors of a real logd, and what is taken down of it."""

import json
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.logd.api.models import Verdict
from penstock.logd.client import Access, LogClient, calls
from penstock.logd.errors import LogdError, RefusedError
from penstock.logd.security.acl import AclRule, Action, Effect
from penstock.logd.security.quotas import Quota
from tests.support.callers import Callers, code_of
from tests.support.liftbridge import (
    EARLIEST,
    LiftbridgeCalls,
    Subscription,
    grpc_address,
    values,
)
from tests.support.logd import Logd
from tests.support.logd_cluster import LogdCluster
from tests.support.nats_server import nats_server
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

DENIED = grpc.StatusCode.PERMISSION_DENIED
BAD = grpc.StatusCode.INVALID_ARGUMENT
STREAMS = [{"name": "orders", "subject": "orders"}, {"name": "secrets", "subject": "secrets"}]


def rule(text: str) -> AclRule:
    effect, principal, action, resource = text.split()
    return AclRule(
        principal=principal, effect=Effect(effect), action=Action(action), resource=resource
    )


def events(log: LogClient) -> list[dict[str, Any]]:
    """Everything that was taken down."""
    start, end = log.offsets("__activity")
    found = log.records("__activity", start, end)
    return [json.loads(record.value or b"") for _, record in found]


def test_every_door_asks_who_may_and_takes_down_what_was_done(tmp_path: Path) -> None:
    callers = Callers(tmp_path, alice=())
    options: dict[str, Any] = {"auth": callers.auth(), "grpc": {"listen": "127.0.0.1:0"}}
    with (
        nats_server(tmp_path / "nats") as server,
        Logd(tmp_path / "logd", server.url, STREAMS, **options) as logd,
        callers.client(logd, "root") as root,
        callers.client(logd, "alice") as alice,
        logd.client() as nobody,
    ):
        for client in (alice, nobody):
            assert code_of(client, calls.offsets("orders", 0)) == "PERMISSION_DENIED"
            assert client.streams() == []
            with pytest.raises(RefusedError, match="may not admin"):
                client.ask(calls.put_acls([rule("allow alice admin *")]))
        root.ask(calls.put_acls([rule("allow alice read orders")]))
        assert alice.offsets("orders") == (0, 0)
        assert [stream.name for stream in alice.streams()] == ["orders"]
        assert code_of(alice, calls.offsets("secrets", 0)) == "PERMISSION_DENIED"

        for path in ("/status", "/metrics"):
            assert callers.status_of(logd, path) == 401
            assert callers.status_of(logd, path, "alice") == 403
            assert callers.status_of(logd, path, "root") == 200
        root.ask(calls.put_acls([rule("allow alice read __status")]))
        assert callers.status_of(logd, "/metrics", "alice") == 200

        assert code_of(nobody, _login("penstock-key.alice.wrong")) == "UNAUTHENTICATED"
        root.delete_stream("secrets")
        wait_until(lambda: len(events(root)) >= 8, what="it is all taken down")
        logd.restart(kill=True)
        with callers.client(logd, "root") as again, callers.client(logd, "alice") as alice_again:
            assert alice_again.offsets("orders") == (0, 0)  # rules are still there
            seen = [
                (one["kind"], one["by"]["name"], one["facts"].get("result"))
                for one in events(again)
                if one["kind"] != "ingest.gap_ended"
            ]
            assert seen.count(("access.denied", "alice", "PERMISSION_DENIED")) == 3
            assert seen.count(("access.denied", "anonymous", "PERMISSION_DENIED")) == 2
            assert seen.count(("acl.add", "root", "ok")) == 2
            assert seen.count(("auth.failed", "logd-1", None)) == 1
            assert seen[-1] == ("stream.delete", "root", "ok")
            assert code_of(alice_again, calls.offsets("__activity", 0)) == "PERMISSION_DENIED"
            text = str(events(again))
            assert "wrong" not in text
            assert not any(key in text for key in callers.keys.values())


def _login(token: str) -> calls.Call[None]:
    return calls.Call({"api": "authenticate", "token": token}, lambda *_: None)


ASKED: list[tuple[str, dict[int, Any]]] = [
    ("CreateStream", {1: "orders.new", 2: "new"}),
    ("DeleteStream", {1: "orders"}),
    ("PauseStream", {1: "orders"}),
    ("SetStreamReadonly", {1: "orders", 3: True}),
    ("FetchPartitionMetadata", {1: "orders"}),
    ("Publish", {2: b"v", 3: "orders"}),
    ("Publish", {2: b"v", 3: "nosuch"}),
    ("PublishToSubject", {2: b"v", 3: "orders"}),
    ("PublishToSubject", {2: b"v", 3: "elsewhere"}),
    ("SetCursor", {1: "orders", 3: "c", 4: 0}),
    ("FetchCursor", {1: "orders", 3: "c"}),
    ("JoinConsumerGroup", {1: "g", 2: "m", 3: "orders"}),
    ("LeaveConsumerGroup", {1: "g", 2: "m"}),
    ("FetchConsumerGroupAssignments", {1: "g", 2: "m"}),
    ("ReportConsumerGroupCoordinator", {1: "g", 2: "m", 3: "x"}),
]


def test_grpc_asks_who_may_call_what(tmp_path: Path) -> None:
    callers = Callers(tmp_path, alice=())
    options: dict[str, Any] = {"auth": callers.auth(), "grpc": {"listen": "127.0.0.1:0"}}
    with (
        nats_server(tmp_path / "nats") as server,
        Logd(tmp_path / "logd", server.url, STREAMS, **options) as logd,
        LiftbridgeCalls(grpc_address(logd), callers.metadata("alice")) as alice,
        LiftbridgeCalls(grpc_address(logd), callers.metadata("root")) as super_user,
        LiftbridgeCalls(grpc_address(logd)) as nobody,
    ):
        for caller in (alice, nobody):
            for method, fields in ASKED:
                assert caller.status(method, fields) is DENIED, method
            assert caller.subscribe("orders").code is DENIED
            refused = caller.publish_async([{2: b"v", 3: "orders", 7: b"1"}])
            assert [set(answer) for answer in refused] == [{1, 2, 3}]
            metadata = caller.call("FetchMetadata", {})
            assert b"orders" not in str(metadata).encode()
        for method, fields in (
            ("FetchPartitionMetadata", {1: "orders"}),
            ("Publish", {2: b"root", 3: "orders"}),
            ("PublishToSubject", {2: b"root", 3: "orders"}),
        ):
            assert super_user.status(method, fields) is grpc.StatusCode.OK, method


def test_grpc_lets_through_what_is_allowed_as_long_as_it_is(tmp_path: Path) -> None:
    callers = Callers(tmp_path, alice=())
    options: dict[str, Any] = {"auth": callers.auth(), "grpc": {"listen": "127.0.0.1:0"}}
    with (
        nats_server(tmp_path / "nats") as server,
        Logd(tmp_path / "logd", server.url, STREAMS, **options) as logd,
        callers.client(logd, "root") as root,
        LiftbridgeCalls(grpc_address(logd), callers.metadata("alice")) as alice,
    ):
        root.ask(
            calls.put_acls([rule("allow alice publish orders"), rule("allow alice read orders")])
        )
        alice.publish("orders", b"mine")
        # An ack may go to an inbox, and not where it would be somebody else's message.
        assert alice.status("Publish", {2: b"x", 3: "orders", 6: "secrets"}) is DENIED
        assert alice.status("Publish", {2: b"x", 3: "orders", 6: "$JS.API.x"}) is BAD
        assert alice.status("Publish", {2: b"y", 3: "orders", 6: "_INBOX.a.b"}) is (
            grpc.StatusCode.OK
        )
        subscription = alice.subscribe("orders", {3: EARLIEST})
        assert values(subscription.take(2)) == [b"mine", b"y"]
        root.ask(calls.put_acls([rule("deny alice read orders")]))
        assert subscription.rest() == []
        assert subscription.code is DENIED
        assert root.offsets("secrets") == (0, 0)

        root.ask(calls.put_quota(Quota(principal="alice", bytes_in_per_s=1000)))
        alice.publish("orders", bytes(20_000))
        assert alice.status("Publish", {2: b"z", 3: "orders"}) is grpc.StatusCode.UNAVAILABLE
        assert "penstock_logd_quota_refused_total" in callers.metrics(logd)


def test_a_cluster_has_the_same_rules_everywhere_and_takes_down_who_leads(tmp_path: Path) -> None:
    with (
        nats_server(tmp_path / "nats") as server,
        LogdCluster(tmp_path / "logd", server.url, streams=STREAMS, activity={}) as cluster,
        cluster.nodes["a"].client() as log,
    ):
        wait_until(lambda: len(log.streams()) == 2, within_s=30, what="streams are made")
        log.ask(calls.put_acls([rule("allow group:ops read orders")]))
        judged = calls.judge("read", "orders", principal="alice", groups=["ops"])
        for node in cluster.nodes.values():
            with node.client() as asked:
                wait_until(partial(_allows, asked, judged), what="it has the rule")
        (partition,) = log.stream("orders").partitions
        before = partition.leader_epoch
        assert partition.leader is not None
        lost = partition.leader
        first = {"acl.add", "node.start"}  # a kill takes what a node has not written yet
        wait_until(lambda: first <= _kinds(log), within_s=30, what="what was done is taken down")
        cluster.nodes[lost].daemon.kill()
        left = next(node for name, node in cluster.nodes.items() if name != lost)
        with left.client() as asked:
            wait_until(
                lambda: _leader(asked) not in (None, lost), within_s=30, what="another leads"
            )
            wait_until(lambda: _taken_down(asked, before), within_s=30, what="it is taken down")
            found = [(one["id"], one["kind"]) for one in events(asked)]
            assert len(set(found)) == len(found)  # once each, though two nodes saw it
            assert {"partition.leader", "partition.isr"} | first <= {kind for _, kind in found}


IN_A_CLUSTER: list[tuple[str, dict[int, Any]]] = [
    ("Publish", {2: b"v", 3: "orders"}),
    ("PublishToSubject", {2: b"v", 3: "orders"}),
    ("SetCursor", {1: "orders", 3: "c", 4: 0}),
    ("JoinConsumerGroup", {1: "g", 2: "m", 3: "orders"}),
    ("FetchConsumerGroupAssignments", {1: "g", 2: "m"}),
    ("PauseStream", {1: "orders"}),
]
"""What any node does for its caller, or has another one do."""

PATIENT = {"lease_ms": 3000}
"""Nodes that are not replaced because a test's machine is busy."""

GRANTED = [f"allow alice {action} orders" for action in ("publish", "read", "cursor", "alter")]


def test_grpc_asks_on_every_node_of_a_cluster_whoever_leads(tmp_path: Path) -> None:
    callers = Callers(tmp_path, alice=())
    let_in = Access(token=callers.keys["root"])
    options: dict[str, Any] = {"auth": callers.auth(), "grpc": {"listen": "127.0.0.1:0"}}
    with (
        nats_server(tmp_path / "nats") as server,
        LogdCluster(
            tmp_path / "logd",
            server.url,
            streams=STREAMS,
            access=let_in,
            section=PATIENT,
            **options,
        ) as cluster,
        cluster.client() as root,
        ExitStack() as stack,
    ):
        wait_until(lambda: len(root.streams()) == 2, within_s=30, what="streams are made")
        cluster.wait_in_sync("orders", size=3)
        alice = {
            name: stack.enter_context(
                LiftbridgeCalls(grpc_address(node), callers.metadata("alice"))
            )
            for name, node in cluster.nodes.items()
        }
        for calling in alice.values():
            for method, fields in (*ASKED, *IN_A_CLUSTER):
                assert calling.status(method, fields) is DENIED, method
            assert calling.subscribe("orders").code is DENIED
            assert b"orders" not in str(calling.call("FetchMetadata", {})).encode()
        assert root.offsets("orders") == (0, 0)

        root.ask(calls.put_acls([rule(one) for one in GRANTED]))
        for calling in alice.values():
            for method, fields in IN_A_CLUSTER:
                if method != "SetCursor":  # its leader only, as clients expect
                    called = partial(_is_called, calling, method, fields)
                    wait_until(called, within_s=60, what=method)
            assert calling.status("Publish", {2: b"v", 3: "secrets"}) is DENIED
        subscribed = wait_until(partial(_subscribed, alice, cluster), within_s=60, what="she reads")
        assert subscribed is not None
        leader, subscription = subscribed
        assert subscription.take(1)
        root.ask(calls.put_acls([rule("deny alice read subject:orders")]))
        subscription.rest()
        assert subscription.code is DENIED

        cluster.nodes[leader].daemon.kill()
        assert wait_until(lambda: cluster.leader("orders")) != leader
        for name in cluster.running():
            assert alice[name].subscribe("orders").code is DENIED
            fields = {2: b"v", 3: "orders"}
            called = partial(_is_called, alice[name], "Publish", fields)
            wait_until(called, within_s=60, what="Publish")


def _subscribed(
    calling: dict[str, LiftbridgeCalls], cluster: LogdCluster
) -> tuple[str, Subscription] | None:
    """At the leader, which may be another node by now."""
    leader = cluster.leader("orders")
    found = calling[leader].subscribe("orders", {3: EARLIEST})
    return (leader, found) if found.stands else None


def _is_called(calling: LiftbridgeCalls, method: str, fields: dict[int, Any]) -> bool:
    return calling.status(method, fields) is grpc.StatusCode.OK


def _allows(log: LogClient, judged: calls.Call[Verdict]) -> bool:
    return log.ask(judged).allowed


def _leader(log: LogClient) -> str | None:
    (partition,) = log.stream("orders").partitions
    return partition.leader


def _found(log: LogClient) -> list[dict[str, Any]]:
    """What is taken down, if that can be read now."""
    try:
        return events(log)
    except LogdError:  # it is not made yet, or its own leader is the one that is lost
        return []


def _kinds(log: LogClient) -> set[str]:
    return {one["kind"] for one in _found(log)}


def _taken_down(log: LogClient, epoch: int) -> bool:
    """Whether it was taken down that another node leads, and who is in sync."""
    found = _found(log)
    about = [one["facts"] for one in found if one["facts"].get("stream") == "orders"]
    return any(one.get("leader") and one["leader_epoch"] > epoch for one in about) and any(
        one["kind"] == "partition.isr" for one in found
    )
