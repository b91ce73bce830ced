"""Of a consumer group whose streams somebody may not know of, nothing is said."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.logd.api.operations import Document
from penstock.logd.api.permissions import AuthorizationRules
from penstock.logd.errors import RefusedError
from penstock.logd.liftbridge.groups import GroupService
from penstock.logd.liftbridge.permissions import CallAuthorization
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.security.principal import Principal, end_call, set_caller
from penstock.logd.wire import logd_liftbridge_pb2 as wire
from tests.support.guarded_api import Guarded, Recorder, guarded, somebody

ORDERS = StreamConfig(name="orders", subject="orders.>")
BOB = somebody("bob")


class OneGroup:
    """There is `theirs`, of one member that reads `orders`."""

    def describe(self, group: str | None = None) -> list[Document]:
        if group not in (None, "theirs"):
            raise RefusedError("UNKNOWN_GROUP", f"there is no group {group!r}")
        members = [{"member": "m", "streams": ["orders"]}]
        return [{"group": "theirs", "epoch": 7, "members": members, "partitions": []}]


def run(directory: Path, work: Callable[[Guarded], Awaitable[None]]) -> None:
    async def main() -> None:
        async with guarded(directory, ORDERS) as found:
            await found.allow("allow alice cursor orders", "allow bob cursor bobs-*")
            await work(found)

    asyncio.run(main())


def said(
    permits: AuthorizationRules, caller: Principal, api: str, group: str, **request: Any
) -> str:
    """What a request about a group is refused with, without its name; empty: it is not."""
    try:
        permits.admit({"api": api, "group": group} | request, caller)
    except RefusedError as error:
        return str(error).replace(group, "")
    return ""


def test_the_fetch_endpoint(tmp_path: Path) -> None:
    async def work(found: Guarded) -> None:
        permits = AuthorizationRules(found.authorizer, cast("Any", OneGroup()))
        theirs = said(permits, BOB, "groups", "theirs")
        assert theirs
        assert theirs == said(permits, BOB, "groups", "nobodys")
        assert said(permits, somebody("alice"), "groups", "theirs") == ""
        beat: dict[str, Any] = {
            "member": "m",
            "streams": ["bobs-own"],
            "session_ms": 10_000,
            "sequence": 1,
            "joining": True,
            "epoch": 0,
            "held": [],
        }
        assert said(permits, BOB, "group_beat", "own", **beat) == ""
        taken = said(permits, BOB, "group_beat", "theirs", **beat)
        assert "take another name" in taken
        assert "orders" not in taken
        left = said(permits, BOB, "group_leave", "theirs", member="m")
        assert left
        assert left == said(permits, BOB, "group_leave", "nobodys", member="m")
        assert said(permits, somebody("alice"), "group_leave", "theirs", member="m") == ""
        await found.allow("allow bob cursor *", "deny bob cursor orders")
        left = said(permits, BOB, "group_leave", "theirs", member="m")
        assert "has no members" in left
        assert left == said(permits, BOB, "group_leave", "nobodys", member="m")

    run(tmp_path, work)


def test_grpc(tmp_path: Path) -> None:
    async def work(found: Guarded) -> None:
        async def answer(*_: object) -> str:
            return "called"

        groups = cast("Any", OneGroup())
        throttle = found.throttle
        rules = AuthorizationRules(found.authorizer, groups)
        permits = CallAuthorization(found.authorizer, throttle, rules, Recorder(), lambda _: "")
        leave = permits.intercept("LeaveConsumerGroup", answer)

        async def told(group: str) -> str:
            with pytest.raises(RefusedError) as refused:
                await leave(wire.LeaveConsumerGroupRequest(groupId=group, consumerId="m"), None)
            return str(refused.value)

        before = set_caller(BOB)
        assert (await told("theirs")).replace("theirs", "nobodys") == await told("nobodys")
        await found.allow("allow bob cursor *", "deny bob cursor subject:orders.>")
        assert (await told("theirs")).replace("theirs", "nobodys") == await told("nobodys")
        end_call(before)
        before = set_caller(somebody("alice"))
        request = wire.LeaveConsumerGroupRequest(groupId="theirs", consumerId="m")
        assert await leave(request, None) == "called"
        end_call(before)
        membership = GroupService(groups, found.engine.streams, timeout_s=1)
        assert membership.metadata("theirs", lambda _: True).epoch == 7
        hidden = membership.metadata("theirs", lambda _: False)
        assert hidden.error == wire.ConsumerGroupMetadata.UNKNOWN_GROUP
        assert (hidden.epoch, hidden.coordinator) == (0, "")

    run(tmp_path, work)
