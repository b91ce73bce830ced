"""A lone logd's api behind its door, without a daemon around it."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.base.clock import SystemClock
from penstock.logd.api.access import AccessApi
from penstock.logd.api.middleware import GuardedApi
from penstock.logd.api.operations import FetchApi, LoneGroups
from penstock.logd.api.permissions import AuthorizationRules
from penstock.logd.api.server import ResponseSlot
from penstock.logd.errors import RefusedError
from penstock.logd.metadata.access import PutAcl
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.partition.cursors import CursorStore
from penstock.logd.security.acl import AclRule, Action, Effect
from penstock.logd.security.authorizer import Authorizer
from penstock.logd.security.principal import ANONYMOUS, Method, Principal
from penstock.logd.security.throttle import QuotaManager
from penstock.logd.standalone import LoneAccess, LoneStreams, StreamSet
from tests.support.partition_context import QuietLink, make_context

ROOT = Principal("root", Method.KEY)
ENDPOINTS = {"fetch": "127.0.0.1:1", "admin": "127.0.0.1:2"}


def somebody(name: str, *groups: str) -> Principal:
    return Principal(name, Method.KEY, frozenset(groups))


def rule(text: str) -> AclRule:
    """`allow alice read orders`."""
    effect, principal, action, resource = text.split()
    return AclRule(
        principal=principal, effect=Effect(effect), action=Action(action), resource=resource
    )


class Recorder:
    """Keeps what is taken down."""

    def __init__(self) -> None:
        self.recorded: list[tuple[str, str, dict[str, Any]]] = []
        self.kept_count = 0

    def record(
        self, kind: str, by: Principal | None, /, *, event_id: str = "", **facts: Any
    ) -> None:
        del event_id
        self.recorded.append((kind, (by or ANONYMOUS).name, facts))

    async def kept(self) -> None:
        self.kept_count = len(self.recorded)


@dataclass
class Guarded:
    """The api, and what it stands on."""

    api: GuardedApi
    inner: FetchApi
    authorizer: Authorizer
    access: LoneAccess
    streams: StreamSet
    recorder: Recorder
    throttle: QuotaManager
    lone: LoneStreams

    @property
    def recorded(self) -> list[tuple[str, str, dict[str, Any]]]:
        """What was taken down."""
        return self.recorder.recorded

    async def ask(self, caller: Principal, api: str, **request: Any) -> dict[str, Any]:
        turn = ResponseSlot(asyncio.Lock(), caller)
        return (await self.api.answer({"api": api} | request, turn)).header

    async def code(self, caller: Principal, api: str, **request: Any) -> str:
        """Why a request is refused; empty: it is not."""
        try:
            await self.ask(caller, api, **request)
        except RefusedError as error:
            return error.code
        return ""

    async def allow(self, *rules: str) -> None:
        await self.access.change(PutAcl(rules=tuple(rule(one) for one in rules)))


@asynccontextmanager
async def guarded(
    directory: Path, *streams: StreamConfig, enabled: bool = True
) -> AsyncIterator[Guarded]:
    numbers = itertools.count()
    found = StreamSet(
        directory,
        QuietLink(),
        make_context=lambda _: make_context(),
        new_incarnation=lambda: f"{next(numbers)}",
    )
    await found.start(streams)
    access = LoneAccess(directory)
    access.open()
    cursors = CursorStore(found, cursors_max=10)
    lone = LoneStreams("me", found, cursors, lambda: ENDPOINTS, lambda: access.table.quotas)
    authorizer = Authorizer(access, lone, enabled=enabled, superusers=["root"])
    throttle = QuotaManager(access, authorizer, SystemClock(), wait_s_max=0.0)
    groups = LoneGroups("me")
    inner = FetchApi(
        lone, cursors, groups, lambda caller: "" if authorizer.is_exempt(caller) else caller.name
    )
    recorder = Recorder()
    api = GuardedApi(
        inner,
        AccessApi(access, authorizer).handlers(),
        authorizer=authorizer,
        permits=AuthorizationRules(authorizer, groups),
        throttle=throttle,
        activity=recorder,
    )
    try:
        yield Guarded(api, inner, authorizer, access, found, recorder, throttle, lone)
    finally:
        await found.close()
