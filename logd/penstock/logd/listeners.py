"""Checks between callers and the streams: authorization, quotas, the activity stream."""

import asyncio
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.base.clock import Clock, SystemClock
from penstock.logd.activity import ActivityJournal, ActivityLog
from penstock.logd.api.handlers import Handlers
from penstock.logd.api.middleware import GuardedApi, TracedApi
from penstock.logd.api.permissions import AuthorizationRules
from penstock.logd.cluster.engine import ClusterEngine
from penstock.logd.config import LogdConfig
from penstock.logd.errors import NotReadyError
from penstock.logd.gap_report import gap_document
from penstock.logd.intake.gaps import Gap
from penstock.logd.metrics import family, value_of
from penstock.logd.partition.acks import AckSender
from penstock.logd.security.acl import Action, OnStream
from penstock.logd.security.authorizer import STATUS, Authorizer
from penstock.logd.security.principal import Principal
from penstock.logd.security.throttle import QuotaManager

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from penstock.logd.liftbridge.permissions import CallAuthorization
    from penstock.service.tracing.spans import Tracer

_JOURNAL = "activity.journal"
_STREAMS_SHOWN = 100
_DRAIN_S = 1.0


class Listeners:
    """Used on the event loop.

    Args:
        config: Configuration of the daemon.
        engine: Engine that keeps the streams.
        clock: The clock; by default the system's.
        tracer: Has spans of requests; None: there are none.

    Attributes:
        activity: Records what happens; run it.
        authorizer: Decides who may do what.
        throttle: Delays clients that are over a quota.
        api: Answers the requests of the fetch endpoint.
    """

    def __init__(
        self,
        config: LogdConfig,
        engine: ClusterEngine,
        clock: Clock | None = None,
        tracer: "Tracer | None" = None,
    ) -> None:
        clock = clock or SystemClock()
        self._engine = engine
        sink = engine.activity if config.takes_down else None
        journal = ActivityJournal(config.data_dir / _JOURNAL) if config.takes_down else None
        boot = secrets.token_hex(4)
        self.activity = ActivityLog(config.node, boot, clock, sink, journal)
        engine.watch(self.activity.record)
        engine.subscription_manager.on_gap = self._on_gap
        self.authorizer = Authorizer(
            engine.access,
            engine.streams,
            enabled=config.auth.acl,
            superusers=config.auth.superusers,
            grants=config.auth.granted(),
        )
        self.throttle = QuotaManager(
            engine.access, self.authorizer, clock, wait_s_max=config.max_quota_delay_s
        )
        self._rules = AuthorizationRules(self.authorizer, engine.groups)
        handlers = Handlers(
            engine.streams,
            engine.cursors,
            engine.groups,
            engine.access,
            self.authorizer,
            creator=self.creator,
            gaps=partial(gap_document, engine),
        )
        guarded = GuardedApi(
            handlers,
            authorizer=self.authorizer,
            permits=self._rules,
            throttle=self.throttle,
            activity=self.activity,
        )
        self.api = guarded if tracer is None else TracedApi(guarded, tracer, engine.streams.match)

    def call_permits(self) -> "CallAuthorization":
        """Return the authorization of gRPC's methods."""
        from penstock.logd.liftbridge.permissions import CallAuthorization  # it loads gRPC

        return CallAuthorization(
            self.authorizer, self.throttle, self._rules, self.activity, self.creator
        )

    def creator(self, caller: Principal) -> str:
        """Return the principal to whose quota a stream counts; empty: to nobody's."""
        if caller.is_anonymous or self.authorizer.is_exempt(caller):
            return ""
        return caller.name

    def reasons(self) -> Iterable[str]:
        """Why they are not as well as they should be."""
        if self.activity.problem:
            waiting = self.activity.waiting
            yield f"{waiting} events are not written down yet: {self.activity.problem}"
        if self.activity.unprotected:
            yield f"events are not written down before they are stored: {self.activity.unprotected}"

    def info(self) -> dict[str, Any]:
        """Return the fields for `/status`."""
        return {
            "acl": self.authorizer.enabled,
            "denied": self.authorizer.denied,
            "activity": dict(self.activity.counts) | {"waiting": self.activity.waiting},
        }

    def metrics(self) -> Iterable["Metric"]:
        outcomes, throttle = dict(self.activity.counts), self.throttle
        yield family("activity", [((outcome,), count) for outcome, count in outcomes.items()])
        yield value_of("activity_waiting", self.activity.waiting)
        yield value_of("requests_denied", self.authorizer.denied)
        yield family("quota_used", dict(throttle.used).items())
        yield family("quota_refused", dict(throttle.refused).items())
        delays = dict(throttle.delayed_ms)
        yield family("quota_delay_seconds", [(labels, ms / 1e3) for labels, ms in delays.items()])

    def not_let_in(
        self, loop: asyncio.AbstractEventLoop, endpoint: str, reason: str, peer: str
    ) -> None:
        """A client has failed to authenticate; reported on any thread."""
        facts = {"door": endpoint, "reason": reason, "peer": peer}
        with suppress(RuntimeError):  # the loop is over
            loop.call_soon_threadsafe(partial(self.activity.record, "auth.failed", None, **facts))

    def keep_from_streams(self, acks: AckSender) -> None:
        """Have no ack sent where a stream would store it, if it matters who publishes what."""
        if self.authorizer.enabled:
            acks.stored = self.is_stored

    def is_stored(self, subject: bytes) -> bool:
        """Return whether a stream stores a subject; until the cluster's state is known, any may."""
        try:
            return bool(self._engine.streams.match(subject.decode("utf-8", "replace")))
        except NotReadyError:
            return True

    def may_see_status(self) -> Callable[[Principal], bool] | None:
        """Says who may see `/status` and `/metrics`; asked on any thread. None: everybody."""
        return self._sees_status if self.authorizer.enabled else None

    def _sees_status(self, caller: Principal) -> bool:
        try:
            return self.authorizer.allows(caller, Action.READ, OnStream(STATUS))
        except NotReadyError:  # rules come with the cluster; superusers need none
            return self.authorizer.is_exempt(caller)

    async def close(self) -> None:
        """Write recorded events while their stream is still open."""
        await self.activity.drain(_DRAIN_S)

    def _on_gap(self, what: str, gap: Gap) -> None:
        facts: dict[str, Any] = {
            "reason": str(gap.reason),
            "streams": list(gap.streams[:_STREAMS_SHOWN]),
            "stream_count": len(gap.streams),
            "start_unix_ns": gap.start.unix_ns,
        }
        if gap.end is not None:
            facts |= {"end_unix_ns": gap.end.unix_ns, "messages": gap.messages}
        self.activity.record(f"ingest.gap_{what}", None, detail=gap.detail, **facts)
