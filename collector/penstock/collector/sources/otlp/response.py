"""Answers to OTLP requests, over gRPC and HTTP alike."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import IntEnum

from penstock.collector.decode.otlp.messages import Encoding, Signal, encode_status
from penstock.collector.limits import OTLP_RETRY_AFTER_S
from penstock.collector.spool.memory_budget import Charge


class Code(IntEnum):
    """The gRPC status codes in use; their numbers are the protocol's."""

    OK = 0
    INVALID_ARGUMENT = 3
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    UNAVAILABLE = 14


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of a request.

    Attributes:
        body: The encoded response, or the encoded status when the code is not OK.
        message: Description of the error.
        retry_after_s: Seconds after which a retry may succeed; None: never.
    """

    code: Code
    body: bytes
    message: str = ""
    retry_after_s: int | None = None


Take = Callable[[Signal, bytes, Encoding, Charge, float], Awaitable[Answer]]
"""Answers a request: what it is of, its bytes and what they hold; until when it may wait, by the
event loop's clock."""


def come_again(encoding: Encoding, code: Code, message: str) -> Answer:
    """The answer to a request for which there is no room now."""
    body = encode_status(encoding, code, message, retry_after_s=OTLP_RETRY_AFTER_S)
    return Answer(code, body, message, OTLP_RETRY_AFTER_S)
