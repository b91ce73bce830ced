"""What an OTLP request is answered, whichever way it came."""

from dataclasses import dataclass
from enum import IntEnum


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
        message: What is wrong.
        retry_after_s: When sending it again can help; None when it never can.
    """

    code: Code
    body: bytes
    message: str = ""
    retry_after_s: int | None = None
