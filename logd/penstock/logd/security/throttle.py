"""Quotas: a client over one waits, up to a bound, and is refused beyond it."""

import asyncio
from collections import Counter
from typing import Final

from penstock.base.clock import Clock
from penstock.logd.cluster.engine import ClusterAccess
from penstock.logd.errors import NotReadyError, RefusedError
from penstock.logd.security.acl import EVERYBODY
from penstock.logd.security.authorizer import Authorizer
from penstock.logd.security.principal import Principal
from penstock.logd.security.quotas import Buckets, Flow, Quota, quota_of

_NS_PER_MS: Final = 1_000_000


class QuotaManager:
    """Used on the event loop.

    Args:
        access: The quotas.
        authorizer: Says for whom none holds.
        clock: The clock.
        wait_s_max: Maximum seconds of a delay before a refusal.

    Attributes:
        delayed_ms: Milliseconds by principal and flow; principals without a quota are `*`.
        refused: Refusals by principal and flow, likewise.
        used: Use by principal and flow, for principals with a quota.
    """

    def __init__(
        self, access: ClusterAccess, authorizer: Authorizer, clock: Clock, *, wait_s_max: float
    ) -> None:
        self.delayed_ms: Counter[tuple[str, str]] = Counter()
        self.refused: Counter[tuple[str, str]] = Counter()
        self.used: Counter[tuple[str, str]] = Counter()
        self._access = access
        self._authorizer = authorizer
        self._clock = clock
        self._wait_ns_max = int(wait_s_max * 1e9)
        self._buckets = Buckets()

    async def take(self, caller: Principal, flow: Flow, amount: int = 1) -> None:
        """Take a part of a quota; wait if it is used up.

        Raises:
            RefusedError: `QUOTA_EXCEEDED`, with `retry_after_ms`: the wait would be too long, and
                nothing was taken.
        """
        rate = self._rate(caller, flow)
        if rate is None:
            return
        now_ns, label = self._clock.monotonic_ns(), self._label(caller)
        wait_ns = self._buckets.wait_ns(caller.name, flow, now_ns)
        if wait_ns > self._wait_ns_max:
            self.refused[label, flow] += 1
            after_ms = -(-(wait_ns - self._wait_ns_max) // _NS_PER_MS)
            raise RefusedError(
                "QUOTA_EXCEEDED",
                f"{caller.name!r} is over its quota of {rate} {flow} a second",
                retry_after_ms=after_ms,
                principal=caller.name,
                quota=str(flow),
            )
        self.used[label, flow] += amount
        self._buckets.take(caller.name, flow, amount, rate, now_ns)
        await self._pause(label, flow, wait_ns)

    async def spend(self, caller: Principal, flow: Flow, amount: int) -> None:
        """Take what is going to be used in any case, however long that is to wait for."""
        rate = self._rate(caller, flow)
        if rate is None or not amount:
            return
        label = self._label(caller)
        self.used[label, flow] += amount
        now_ns = self._clock.monotonic_ns()
        wait_ns = self._buckets.take(caller.name, flow, amount, rate, now_ns)
        await self._pause(label, flow, wait_ns)

    def charge(self, caller: Principal, flow: Flow, amount: int) -> None:
        """Take what has been used: whatever comes next waits for it."""
        rate = self._rate(caller, flow)
        if rate is not None and amount:
            self.used[self._label(caller), flow] += amount
            now_ns = self._clock.monotonic_ns()
            self._buckets.take(caller.name, flow, amount, rate, now_ns)

    async def _pause(self, label: str, flow: Flow, wait_ns: int) -> None:
        if wait_ns:
            self.delayed_ms[label, flow] += wait_ns // _NS_PER_MS
            await asyncio.sleep(wait_ns / 1e9)

    def _rate(self, caller: Principal, flow: Flow) -> int | None:
        quota = self._quota(caller)
        return None if quota is None else quota.rate(flow)

    def _quota(self, caller: Principal) -> Quota | None:
        try:
            quotas = self._access.table.quotas
        except NotReadyError:  # what there is to be had is refused as that
            return None
        if not quotas or self._authorizer.is_exempt(caller):
            return None
        return quota_of(quotas, caller.name)

    def _label(self, caller: Principal) -> str:
        """Return the label for metrics, which has no more values than there are quotas."""
        return caller.name if caller.name in self._access.table.quotas else EVERYBODY
