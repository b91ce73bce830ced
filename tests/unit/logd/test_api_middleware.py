"""What the fetch endpoint lets through, and what it shows, by the rules there are."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.logd.api.operations import OPERATIONS, On
from penstock.logd.errors import RefusedError
from penstock.logd.intake.turn import Message
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.security.principal import ANONYMOUS, Method, Principal
from tests.support.guarded_api import ROOT, Guarded, guarded, somebody

ORDERS = StreamConfig(name="orders", subject="orders.>")
LOGS = StreamConfig(name="logs", subject="telemetry.logs.*")
ALICE = somebody("alice")
NODE = Principal("other", Method.NODE)


def run(directory: Path, work: Callable[[Guarded], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with guarded(directory, ORDERS, LOGS, **options) as found:
            await work(found)

    asyncio.run(main())


ASKS: list[tuple[str, dict[str, Any], str]] = [
    ("fetch", {"stream": "orders", "offset": 0}, "read"),
    ("offsets", {"stream": "orders", "at": "latest"}, "read"),
    ("delete_stream", {"stream": "orders"}, "delete"),
    ("purge", {"stream": "orders", "before": 0}, "delete"),
    ("open_stream", {"stream": "orders"}, "alter"),
    ("alter_stream", {"stream": "orders", "options": {}}, "alter"),
    ("set_mode", {"stream": "orders"}, "alter"),
    ("set_cursor", {"cursors": [{"consumer": "c", "stream": "orders", "offset": 0}]}, "cursor"),
    ("get_cursor", {"consumer": "c", "stream": "orders"}, "cursor"),
    ("delete_cursor", {"consumer": "c", "stream": "orders"}, "cursor"),
    ("list_cursors", {"stream": "orders"}, "cursor"),
    ("move", {"stream": "orders", "replicas": None}, "admin"),
    ("observe", {"stream": "orders", "observers": []}, "admin"),
    ("elect", {"stream": "orders", "lose_records": True}, "admin"),
]
OF_THE_CLUSTER: list[tuple[str, dict[str, Any]]] = [
    ("drain", {"node": "a"}),
    ("remove_node", {"node": "a"}),
    ("rebalance", {}),
    ("step_down", {}),
    ("acls", {}),
    ("put_acls", {"rules": []}),
    ("delete_acls", {"rules": []}),
    ("quotas", {}),
    ("put_quota", {"quota": {"principal": "a"}}),
    ("delete_quota", {"principal": "a"}),
    ("who_can", {"action": "read", "resource": "orders"}),
    ("test_acl", {"principal": "bob", "action": "read", "resource": "orders"}),
    ("what_comes_later", {}),
]


@pytest.mark.parametrize(("api", "request_", "action"), ASKS, ids=[one[0] for one in ASKS])
def test_a_stream_is_only_for_whom_its_rules_allow_it(
    tmp_path: Path, api: str, request_: dict[str, Any], action: str
) -> None:
    async def work(found: Guarded) -> None:
        others = {"publish", "read", "delete", "alter", "cursor", "admin"} - {action}
        await found.allow(*(f"allow alice {other} orders" for other in sorted(others)))
        await found.allow(f"allow alice {action} logs", f"allow bob {action} orders")
        for caller in (ALICE, ANONYMOUS, somebody("group:ops"), somebody("*")):
            with pytest.raises(RefusedError) as error:
                await found.ask(caller, api, **request_)
            assert error.value.code == "PERMISSION_DENIED"
            assert error.value.detail["action"] == action
        assert found.recorded[-1][0] == "access.denied"
        assert await found.code(NODE, api, **request_) != "PERMISSION_DENIED"
        assert await found.code(somebody("bob"), api, **request_) != "PERMISSION_DENIED"

    run(tmp_path, work)


def test_of_a_stream_that_is_not_there_nothing_is_said(tmp_path: Path) -> None:
    async def work(found: Guarded) -> None:
        await found.allow("allow alice read subject:orders.>", "allow bob read orders-*")
        assert await found.code(ALICE, "fetch", stream="orders", offset=0) == ""
        for name in ("secret", "logs"):
            assert await found.code(ALICE, "fetch", stream=name, offset=0) == "PERMISSION_DENIED"
            assert await found.code(ALICE, "streams", stream=name) == "PERMISSION_DENIED"
        bob = somebody("bob")
        assert await found.code(bob, "fetch", stream="orders-x", offset=0) == "UNKNOWN_STREAM"

    run(tmp_path, work)


@pytest.mark.parametrize("more", [(), ("allow alice read *",)], ids=["denied", "allowed_others"])
def test_a_rule_that_denies_a_subject_does_not_tell_which_streams_store_it(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    async def work(found: Guarded) -> None:
        await found.allow("deny alice read subject:orders.>", *more)

        async def told(api: str, name: str) -> str:
            more: dict[str, Any] = {"offset": 0} if api == "fetch" else {"at": "latest"}
            with pytest.raises(RefusedError) as refused:
                await found.ask(ALICE, api, stream=name, **more)
            detail = str(sorted(refused.value.detail.items()))
            return f"{refused.value.code} {refused.value} {detail}".replace(name, "NAME")

        for api in ("fetch", "offsets"):
            assert await told(api, "orders") == await told(api, "nothing")
            assert found.recorded[-1 - (not more)][0] == "access.denied"
        await found.allow("allow alice cursor orders")  # it may know of the stream now
        assert "rule" in await told("fetch", "orders")

    run(tmp_path, work)


@pytest.mark.parametrize(("api", "request_"), OF_THE_CLUSTER, ids=[o[0] for o in OF_THE_CLUSTER])
def test_the_cluster_is_for_whoever_administers_everything(
    tmp_path: Path, api: str, request_: dict[str, Any]
) -> None:
    async def work(found: Guarded) -> None:
        await found.allow("allow alice admin orders", "allow alice read *")
        assert await found.code(ALICE, api, **request_) == "PERMISSION_DENIED"
        assert await found.code(ROOT, api, **request_) != "PERMISSION_DENIED"
        await found.allow("allow alice admin *")
        assert await found.code(ALICE, api, **request_) != "PERMISSION_DENIED"
        await found.allow("deny alice admin *")
        assert await found.code(ALICE, api, **request_) == "PERMISSION_DENIED"

    run(tmp_path, work)


def test_every_request_is_somebodys(tmp_path: Path) -> None:
    """What the lists above do not have is for everybody; say so here if that is meant."""

    async def work(found: Guarded) -> None:
        with pytest.raises(RefusedError, match="there is no api") as unknown:
            await found.ask(ROOT, "nothing")
        assert str(unknown.value).rpartition("known: ")[2].split(", ") == list(OPERATIONS)
        denied = {"test_acl"}  # about another principal
        for api in OPERATIONS:
            try:
                found.api.admit({"api": api}, ALICE)  # without a look at what it lacks
            except RefusedError as error:
                denied |= {api} if error.code == "PERMISSION_DENIED" else set()
        assert denied == {api for api, _ in OF_THE_CLUSTER} - {"what_comes_later"}
        everybodys = {name for name, row in OPERATIONS.items() if row.right.on is On.NOTHING}
        assert everybodys == {"match", "cluster", "gaps", "cancel", "authenticate"}

    run(tmp_path, work)


@pytest.mark.parametrize(
    ("name", "subject", "partitions", "allowed"),
    [
        ("mine", "telemetry.logs.a", 1, True),
        ("mine", "telemetry.logs.*", 1, True),
        ("mine", "telemetry.logs.a", 2, False),  # partition 1 is on telemetry.logs.a.1
        ("mine", "telemetry.logs.>", 1, False),
        ("mine", "telemetry.>", 1, False),
        ("mine", "*.logs.*", 1, False),
        ("mine", ">", 1, False),
        ("orders", "telemetry.logs.a", 1, False),  # names may be kept free
    ],
)
def test_who_creates_a_stream_stores_nothing_it_may_not(
    tmp_path: Path, name: str, subject: str, partitions: int, allowed: bool
) -> None:
    async def work(found: Guarded) -> None:
        await found.allow("allow alice create subject:telemetry.logs.*", "deny * create orders*")
        config = {"name": name, "subject": subject, "ack_on_reply": False}
        code = await found.code(ALICE, "create_stream", config=config | {"partitions": partitions})
        assert (code != "PERMISSION_DENIED") == allowed

    run(tmp_path, work)


def test_a_part_of_a_stream_may_be_all_that_somebody_may_read(tmp_path: Path) -> None:
    async def work(found: Guarded) -> None:
        await found.allow("allow alice read subject:orders.eu.>", "deny alice read subject:*.eu.x")
        for subject, code in (
            ("orders.eu.fr", ""),
            ("orders.eu.*", "PERMISSION_DENIED"),
            ("orders.eu.x", "PERMISSION_DENIED"),
            ("orders.>", "PERMISSION_DENIED"),
            (None, "PERMISSION_DENIED"),
        ):
            asked = {} if subject is None else {"subject": subject}
            assert await found.code(ALICE, "fetch", stream="orders", offset=0, **asked) == code

    run(tmp_path, work)


def test_everybody_sees_what_is_theirs(tmp_path: Path) -> None:
    async def work(found: Guarded) -> None:
        await found.allow("allow alice publish orders", "allow alice cursor orders")
        for stream in ("orders", "logs"):
            cursor = {"consumer": "c", "stream": stream, "offset": 0}
            await found.ask(ROOT, "set_cursor", cursors=[cursor])
        seen = await found.ask(ALICE, "streams", internal=True)
        assert [one["name"] for one in seen["streams"]] == ["__cursors", "orders"]
        assert len((await found.ask(ROOT, "streams"))["streams"]) == 2
        assert await found.ask(ALICE, "match", subject="telemetry.logs.a") == {"streams": []}
        assert await found.ask(ALICE, "match", subject="orders.a") == {"streams": ["orders"]}
        cursors = await found.ask(ALICE, "list_cursors")
        assert [one["stream"] for one in cursors["cursors"]] == ["orders"]
        (node,) = (await found.ask(ALICE, "cluster"))["nodes"]
        assert (node["fetch"], node["admin"]) == ("127.0.0.1:1", "")
        (node,) = (await found.ask(ROOT, "cluster"))["nodes"]
        assert node["admin"] == "127.0.0.1:2"
        nobody = await found.ask(ANONYMOUS, "streams")
        gap = {"streams": ["orders/0", "logs"], "stream_count": 2}
        gaps = {"lasting": [gap], "ended": [gap | {"streams": ["logs"]}], "damaged": []}
        seen = found.permits.show(OPERATIONS["gaps"], gaps, ALICE)
        assert seen["lasting"] == [{"streams": ["orders/0"], "stream_count": 1}]
        assert seen["ended"] == []
        assert nobody["streams"] == []

    run(tmp_path, work)


def test_a_change_of_rules_holds_at_once_and_is_taken_down(tmp_path: Path) -> None:
    async def work(found: Guarded) -> None:
        rules = [{"effect": "allow", "principal": "alice", "action": "read", "resource": "orders"}]
        put = await found.ask(ROOT, "put_acls", rules=rules)
        assert put["changed"]
        assert await found.code(ALICE, "fetch", stream="orders", offset=0) == ""
        tested = {"action": "read", "resource": "orders"}
        mine = await found.ask(ALICE, "test_acl", **tested)
        assert mine["allowed"]
        assert mine["rule"]["id"] == put["rules"][0]["id"]
        who = await found.ask(ROOT, "who_can", **tested)
        can = {one["principal"]: one["allowed"] for one in who["principals"]}
        assert can == {"*": False, "alice": True, "root": True}
        removed = {"rules": [put["rules"][0]["id"]], "based_on": put["version"]}
        await found.ask(ROOT, "delete_acls", **removed)
        assert await found.code(ROOT, "delete_acls", **removed) == "STALE_VERSION"
        assert await found.code(ALICE, "fetch", stream="orders", offset=0) == "PERMISSION_DENIED"
        kinds = [(kind, by, facts["result"]) for kind, by, facts in found.recorded]
        assert kinds == [
            ("acl.add", "root", "ok"),
            ("acl.remove", "root", "ok"),
            ("acl.remove", "root", "STALE_VERSION"),
            ("access.denied", "alice", "PERMISSION_DENIED"),
        ]

    run(tmp_path, work)


def test_what_was_done_outlasts_the_machine_before_whoever_asked_is_told(tmp_path: Path) -> None:
    async def work(found: Guarded) -> None:
        recorder = found.recorder
        for api, asked, kept in (
            ("delete_acls", {"rules": ["1"]}, 1),
            ("fetch", {"stream": "orders", "offset": 0}, 1),
            ("set_mode", {"stream": "nothing"}, 2),
        ):
            await found.code(ROOT, api, **asked)
            assert recorder.kept_count == len(found.recorded) == kept
        assert await found.code(ALICE, "delete_stream", stream="orders") == "PERMISSION_DENIED"
        assert (recorder.kept_count, len(found.recorded)) == (2, 3), "anybody could have it synced"

    run(tmp_path, work)


def test_a_fetch_that_waited_is_not_answered_by_rules_of_before(tmp_path: Path) -> None:
    async def work(found: Guarded) -> None:
        await found.allow("allow alice read orders")
        asked = {"stream": "orders", "offset": 0, "wait_ms_max": 60_000}
        waiting = asyncio.create_task(found.code(ALICE, "fetch", **asked))
        await asyncio.sleep(0)
        await found.allow("deny alice read orders")
        assert not waiting.done()
        found.partition("orders").take([Message(b"orders.new", b"", b"", b"x")])
        async with asyncio.timeout(20):
            assert await waiting == "PERMISSION_DENIED"

    run(tmp_path, work)


def test_who_may_not_restore_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    async def work(found: Guarded) -> None:
        request = {"api": "restore", "stream": "orders", "partition": 0, "upload": 100}
        with pytest.raises(RefusedError) as refused:
            found.api.admit(request, ALICE)
        assert refused.value.code == "PERMISSION_DENIED"
        assert [(kind, by) for kind, by, _ in found.recorded] == [("access.denied", "alice")]
        found.api.admit(request, ROOT)

    run(tmp_path, work)


def test_quotas_hold_for_everybody_but_who_must_get_through(tmp_path: Path) -> None:
    async def work(found: Guarded) -> None:
        for quota in ({"principal": "*", "requests_per_s": 2}, {"principal": "bob", "streams": 1}):
            await found.ask(ROOT, "put_quota", quota=quota)
        codes = [await found.code(ALICE, "match", subject="a") for _ in range(5)]
        assert codes == ["", "", "", "QUOTA_EXCEEDED", "QUOTA_EXCEEDED"]
        with pytest.raises(RefusedError) as error:
            await found.ask(ALICE, "match", subject="a")
        assert 0 < int(error.value.detail["retry_after_ms"]) <= 500
        for caller in (ROOT, NODE, somebody("bob"), somebody("carol")):
            assert await found.code(caller, "match", subject="a") == ""
        bob = somebody("bob")
        codes = [
            await found.code(bob, "create_stream", config={"name": name, "subject": f"{name}.>"})
            for name in ("one", "two", "one")
        ]
        assert codes == ["", "QUOTA_EXCEEDED", ""]
        assert await found.code(ROOT, "delete_stream", stream="one") == ""
        config = {"name": "two", "subject": "two.>"}
        assert await found.code(bob, "create_stream", config=config) == ""

    run(tmp_path, work, enabled=False)


def test_without_permissions_switched_on_everybody_may_everything(tmp_path: Path) -> None:
    async def work(found: Guarded) -> None:
        for api, request_, _ in ASKS:
            assert await found.code(ANONYMOUS, api, **request_) != "PERMISSION_DENIED"

    run(tmp_path, work, enabled=False)


@pytest.mark.parametrize(
    ("api", "request_"),
    [
        ("fetch", {"stream": 1}),
        ("set_cursor", {"cursors": [1]}),
        ("set_cursor", {"cursors": None}),
        ("group_beat", {"group": "g", "streams": "orders"}),
        ("create_stream", {"config": []}),
        ("put_acls", {"rules": [{"effect": "maybe"}]}),
        ("put_acls", {"rules": "all"}),
        ("test_acl", {"action": "fly", "resource": "orders"}),
        ("put_quota", {"quota": {"principal": "a", "streams": "1"}}),
    ],
)
def test_what_says_nothing_sensible_is_refused_as_that(
    tmp_path: Path, api: str, request_: dict[str, Any]
) -> None:
    async def work(found: Guarded) -> None:
        assert await found.code(ROOT, api, **request_) == "BAD_REQUEST"
        assert await found.code(ALICE, api, **request_) in ("BAD_REQUEST", "PERMISSION_DENIED")

    run(tmp_path, work)
