"""The api of one node behind its door, without a daemon around it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import orjson
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.logd.api.handlers import Handlers
from penstock.logd.api.middleware import GuardedApi
from penstock.logd.api.operations import OPERATIONS, Document
from penstock.logd.api.permissions import AuthorizationRules
from penstock.logd.api.server import Response, ResponseSlot
from penstock.logd.cluster.engine import ClusterEngine
from penstock.logd.errors import RefusedError
from penstock.logd.metadata.access import PutAcl
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.partition.partition import Partition
from penstock.logd.security.acl import AclRule, Action, Effect
from penstock.logd.security.authorizer import Authorizer
from penstock.logd.security.principal import ANONYMOUS, Method, Principal
from penstock.logd.security.throttle import QuotaManager
from tests.support.one_node import one_node

ROOT = Principal("root", Method.KEY)


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


class CheckedApi(GuardedApi):
    """Asserts of each answer that it is as the table of operations says."""

    @override
    async def answer(self, request: Document, turn: ResponseSlot) -> Response:
        response = await super().answer(request, turn)
        header = orjson.loads(orjson.dumps(response.header))
        model = OPERATIONS[request["api"]].answer
        assert model is not None
        read = msgspec.json.encode(msgspec.convert(header, model))
        assert orjson.loads(read) == header
        return response


def open_api(engine: ClusterEngine, streams: Any = None) -> GuardedApi:
    """The api of a node, or of other streams, where everybody may do everything."""
    streams = streams or engine.streams
    authorizer = Authorizer(engine.access, streams, enabled=False)
    return CheckedApi(
        Handlers(streams, engine.cursors, engine.groups, engine.access, authorizer, gaps=no_gaps),
        authorizer=authorizer,
        permits=AuthorizationRules(authorizer, engine.groups),
        throttle=QuotaManager(engine.access, authorizer, SystemClock(), wait_s_max=0.0),
        activity=Recorder(),
    )


def no_gaps() -> Document:
    return {"lasting": [], "ended": [], "damaged": []}


@dataclass
class Guarded:
    """The api, and what it stands on."""

    api: GuardedApi
    permits: AuthorizationRules
    authorizer: Authorizer
    engine: ClusterEngine
    recorder: Recorder
    throttle: QuotaManager

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

    def partition(self, stream: str) -> Partition:
        """The first partition of a stream, led here."""
        found = self.engine.streams.partition(stream, 0)
        assert isinstance(found, Partition)
        return found

    async def allow(self, *rules: str) -> None:
        await self.engine.access.change(PutAcl(rules=tuple(rule(one) for one in rules)))


@asynccontextmanager
async def guarded(
    directory: Path, *streams: StreamConfig, enabled: bool = True
) -> AsyncIterator[Guarded]:
    async with one_node(directory, *streams) as node:
        engine = node.engine
        authorizer = Authorizer(engine.access, engine.streams, enabled=enabled, superusers=["root"])
        throttle = QuotaManager(engine.access, authorizer, SystemClock(), wait_s_max=0.0)

        def creator(caller: Principal) -> str:
            return "" if authorizer.is_exempt(caller) else caller.name

        handlers = Handlers(
            engine.streams,
            engine.cursors,
            engine.groups,
            engine.access,
            authorizer,
            creator=creator,
            gaps=no_gaps,
        )
        recorder = Recorder()
        permits = AuthorizationRules(authorizer, engine.groups)
        api = CheckedApi(
            handlers,
            authorizer=authorizer,
            permits=permits,
            throttle=throttle,
            activity=recorder,
        )
        yield Guarded(api, permits, authorizer, engine, recorder, throttle)
