"""A gRPC channel that is left as a connection over HTTP/1.1 is (`penstock.base.http.client`).

gRPC keeps a connection over which UNAVAILABLE comes, for it is the server's answer, and one that
answers no more. The first may be to a backend that drains, the second is dead. So the channel is
made again after either, and when it is `CONNECTION_AGE_S` old: a new one resolves the name again,
and takes its addresses in its own order.
"""

from collections.abc import Iterable
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from penstock.base.clock import BlockingClock
from penstock.base.http.client import CONNECTION_AGE_S

_LEFT_AFTER: Final = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)
_DETAILS: Final = "grpc-status-details-bin"
_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),  # else a new channel would find the old connection
    (
        "grpc.service_config",
        '{"loadBalancingConfig": [{"pick_first": {"shuffleAddressList": true}}]}',
    ),
)


class GrpcChannel:
    """The connection to one host.

    Args:
        target: Its name and port.
        credentials: Credentials of TLS; None: there is none.
    """

    def __init__(self, target: str, credentials: Any, clock: BlockingClock) -> None:
        self._target = target
        self._credentials = credentials
        self._clock = clock
        self._channel = self._make()

    def current(self) -> Any:
        """The channel for the next call."""
        if self._clock.monotonic_ns() - self._made_ns > CONNECTION_AGE_S * 1e9:
            self._renew()
        return self._channel

    def failed(self, code: grpc.StatusCode) -> None:
        """A call ended with this code."""
        if code in _LEFT_AFTER:
            self._renew()

    def close(self) -> None:
        self._channel.close()

    def _renew(self) -> None:
        self._channel.close()
        self._channel = self._make()

    def _make(self) -> Any:
        self._made_ns = self._clock.monotonic_ns()
        if self._credentials is None:
            return grpc.insecure_channel(self._target, options=_OPTIONS)
        return grpc.secure_channel(self._target, self._credentials, options=_OPTIONS)


def error_details(error: Any) -> Iterable[Any]:
    """The details that a server sent with the error of a call (`google.rpc.Status`)."""
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS:
            try:
                found: Iterable[Any] = status_pb2.Status.FromString(value).details
            except DecodeError:
                break
            return found
    return ()


def retry_after_s(details: Iterable[Any]) -> float | None:
    """The delay of RetryInfo among the details of an error; None: there is none."""
    for detail in details:
        found = error_details_pb2.RetryInfo()
        if detail.Unpack(found):
            return float(found.retry_delay.seconds + found.retry_delay.nanos / 1e9)
    return None
