"""Quotas of principals: buckets that fill with time, and the waits that they impose.

The generic cell rate algorithm (ITU-T I.371, annex A), which keeps one number for a bucket: the
time at which everything taken so far is paid for. What is taken may exceed what is there; then
whatever comes next waits. So a batch of any size passes, and the rate holds in the long run.
"""

from collections import OrderedDict
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct

from penstock.logd.errors import RefusedError
from penstock.logd.security.acl import EVERYBODY, GROUP, check_principal

BURST_NS: Final = 1_000_000_000
"""Nanoseconds: a bucket holds what comes in so long."""

_BUCKETS_MAX: Final = 30_000
"""Buckets at a time; beyond it the one used longest ago goes, and is full when it comes again."""

_RATE_MAX: Final = 1 << 50


class Flow(StrEnum):
    """Flow that is limited by time."""

    BYTES_IN = "bytes_in"
    BYTES_OUT = "bytes_out"
    REQUESTS = "requests"


class Quota(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Quota of a principal on each node; None: unlimited.

    Attributes:
        principal: A name, or `*`: each that has no quota.
        bytes_in_per_s: Bytes it publishes over gRPC.
        bytes_out_per_s: Bytes it is sent.
        requests_per_s: Requests and calls.
        streams: Maximum streams that it created; of the whole cluster.
    """

    principal: str
    bytes_in_per_s: int | None = None
    bytes_out_per_s: int | None = None
    requests_per_s: int | None = None
    streams: int | None = None

    def rate(self, flow: Flow) -> int | None:
        """Return the limit of a flow a second; None: unlimited."""
        match flow:
            case Flow.BYTES_IN:
                return self.bytes_in_per_s
            case Flow.BYTES_OUT:
                return self.bytes_out_per_s
            case Flow.REQUESTS:
                return self.requests_per_s


def check_quota(quota: Quota) -> None:
    """Check that a quota means something.

    Raises:
        RefusedError: `BAD_RULE`, `BAD_QUOTA`.
    """
    check_principal(quota.principal)
    if quota.principal.startswith(GROUP):
        message = f"{quota.principal!r}: a quota is of a name, or of * for all others"
        raise RefusedError("BAD_QUOTA", message)
    rates = [quota.rate(flow) for flow in Flow]
    given = [limit for limit in (*rates, quota.streams) if limit is not None]
    if not given:
        raise RefusedError("BAD_QUOTA", f"{quota.principal!r}: it limits nothing; remove it")
    if any(rate is not None and not 1 <= rate <= _RATE_MAX for rate in rates):
        raise RefusedError("BAD_QUOTA", f"{quota.principal!r}: a rate is 1 to {_RATE_MAX}")
    if quota.streams is not None and not 0 <= quota.streams <= _RATE_MAX:
        raise RefusedError("BAD_QUOTA", f"{quota.principal!r}: streams: 0 or more")


class Buckets:
    """Use of principals' quotas."""

    def __init__(self) -> None:
        self._paid_ns: OrderedDict[tuple[str, Flow], int] = OrderedDict()

    def wait_ns(self, principal: str, flow: Flow, now_ns: int) -> int:
        """Return how many ns a request that comes now has to wait."""
        paid_ns = self._paid_ns.get((principal, flow), now_ns)
        return max(0, paid_ns - now_ns - BURST_NS)

    def take(self, principal: str, flow: Flow, amount: int, rate: int, now_ns: int) -> int:
        """Take something, be it there or not; how long to wait before it is used."""
        key = (principal, flow)
        wait_ns = self.wait_ns(principal, flow, now_ns)
        paid_ns = max(self._paid_ns.get(key, now_ns), now_ns)
        self._paid_ns[key] = paid_ns + amount * 1_000_000_000 // rate
        self._paid_ns.move_to_end(key)
        if len(self._paid_ns) > _BUCKETS_MAX:
            self._paid_ns.popitem(last=False)
        return wait_ns


def quota_of(quotas: Mapping[str, Quota], name: str) -> Quota | None:
    """The quota that holds for a principal: its own, or that of all others."""
    return quotas.get(name) or quotas.get(EVERYBODY)
