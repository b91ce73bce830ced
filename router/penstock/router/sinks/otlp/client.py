"""OTLP over gRPC: one channel, its status codes as verdicts.

Codes that may be tried again are those of the OTLP specification ("Failures"); of
RESOURCE_EXHAUSTED it says that it may only where the destination sends RetryInfo. Receivers answer
it to a message that is too large and, without RetryInfo, where a limit of the rate is reached: what
they say tells one from the other.
"""

import re
from pathlib import Path
from typing import Any, Final

import grpc

from penstock.base.clock import BlockingClock
from penstock.router.delivery.result import (
    DeliveryResult,
    Failed,
    Fault,
    Paused,
    Rejected,
    Retryable,
    TooLarge,
)
from penstock.router.sinks.http.grpc_channel import GrpcChannel, error_details, retry_after_s
from penstock.router.sinks.http.request_sink import revealed
from penstock.router.sinks.otlp.encode import Signal, partial_success
from penstock.router.sinks.otlp.sink import OtlpSink

_AGAIN: Final = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.DATA_LOSS,
    }
)
_SENDER: Final = frozenset(
    {
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.NOT_FOUND,
    }
)
_FAILURES: Final = frozenset({grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN})
_TOO_LARGE: Final = re.compile(r"larger|too[ _](large|big)|size", re.IGNORECASE)
_RATE: Final = re.compile(r"rate[ _-]?limit", re.IGNORECASE)
_NEVER_FITS: Final = re.compile(r"(batch|request|message) size\b.*\bexceeds", re.IGNORECASE)
"""Tempo calls its limit for the size of a request one of a rate."""
_SAID_MAX: Final = 400
"""Why a certificate is not trusted stands behind 200 characters of addresses."""

_LOST: Final = re.compile(
    r"Stream removed|Socket closed|(recv|send)msg:|Connection (reset|aborted)|Broken pipe"
)
"""Pattern of gRPC's errors on a lost connection; one that cannot be made is `failed to connect`."""

_NAME: Final = re.compile(r"(?!.*-bin$)[0-9a-z_.-]+")
_VALUE: Final = re.compile(r"[\x20-\x7e]*")
"""gRPC over HTTP/2, "Custom-Metadata": names that end in `-bin` have bytes, as no header has."""


class Channel:
    """A connection that is made when it is needed, and made again when it is lost."""

    def __init__(self, config: OtlpSink, clock: BlockingClock) -> None:
        self._timeout_s = config.timeout_s
        self._compression = (
            grpc.Compression.NoCompression
            if config.compression == "none"
            else grpc.Compression.Gzip
        )
        self._headers = config.headers
        credentials = _credentials(config) if config.url.scheme == "https" else None
        target = f"{config.url.host}:{config.url.port}"
        self._channel = GrpcChannel(target, credentials, clock)

    def export(self, signal: Signal, body: bytes, count: int) -> DeliveryResult:
        """Send a request; returns what became of its `count` records."""
        try:
            headers = revealed(self._headers)
        except OSError as error:
            return Paused(f"a secret cannot be read: {error}")
        metadata = tuple((name.lower(), value) for name, value in headers.items())
        for name, value in metadata:
            if _NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
                return Paused(f"header {name}: its name, or a character of its value, gRPC forbids")
        call: Any = self._channel.current().unary_unary(signal.method)
        try:
            answer = call(
                body,
                timeout=self._timeout_s,
                metadata=metadata,
                compression=self._compression,
            )
        except grpc.RpcError as error:
            self._channel.failed(error.code())
            return classify_error(error)
        return partial_success(signal, answer, count)

    def close(self) -> None:
        self._channel.close()


def classify_error(error: Any) -> DeliveryResult:
    """Return the result for the records of a failed call."""
    code, text = error.code(), f"gRPC {error.code().name}: {str(error.details())[:_SAID_MAX]}"
    fault = Fault(f"grpc_{code.name.lower()}", text)
    after_s = retry_after_s(error_details(error))
    if code in _AGAIN:
        return Failed(fault, after_s or 0.0, answered=False)
    if code in _FAILURES:
        return Failed(fault)
    if code is grpc.StatusCode.UNAVAILABLE:
        if after_s is None and _LOST.match(str(error.details())):
            return Failed(fault, answered=False)
        return Retryable(text, after_s or 0.0)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        told = str(error.details())
        is_large = _NEVER_FITS.search(told) or (_TOO_LARGE.search(told) and not _RATE.search(told))
        return TooLarge(fault) if after_s is None and is_large else Retryable(text, after_s or 0.0)
    return Paused(text) if code in _SENDER else Rejected(fault)


def _credentials(config: OtlpSink) -> Any:
    files = config.tls

    def read(path: Path | None) -> bytes | None:
        return path.read_bytes() if path is not None else None

    return grpc.ssl_channel_credentials(
        read(files.ca_file), read(files.key_file), read(files.cert_file)
    )
