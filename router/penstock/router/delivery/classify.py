"""HTTP's status codes as delivery results; sinks name where their protocol differs.

Codes that say that the sender, the address or the account is wrong refuse no record: somebody has
to correct a password or a URL, and until then the records wait. So it is with 404 and 405, too: a
path that is not there takes none of the records, and a job that lays them all among the dead
letters for a slip in its URL has lost them for practical purposes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, assert_never

from penstock.router.delivery.result import (
    DeliveryResult,
    Failed,
    Fault,
    Paused,
    Rejected,
    Retryable,
    Success,
    TooLarge,
)


class Meaning(Enum):
    """The meaning of an HTTP status code for a whole request."""

    TAKEN = auto()
    TOO_LARGE = auto()
    UNFIT = auto()
    BUSY = auto()
    FAILED = auto()
    PAUSED = auto()


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response of an HTTP server.

    Attributes:
        status: The status code.
        headers: Headers by name in lower case.
        body: The beginning of the body.
        after_s: Seconds that Retry-After asks for; 0: none.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    after_s: float = 0.0

    @property
    def fault(self) -> Fault:
        """The answer as a reason."""
        excerpt = self.body[:EXCERPT_BYTES].decode(errors="replace").strip()
        reason = f"HTTP {self.status} {excerpt}".rstrip()
        return Fault(f"http_{self.status}", reason, self.status)


EXCERPT_BYTES: Final = 200
"""Maximum bytes of a response's body that are quoted in a reason."""

MEANINGS: Final[Mapping[int, Meaning]] = {
    **dict.fromkeys((401, 402, 403, 404, 405, 407, 410, 411, 415, 421, 426, 451), Meaning.PAUSED),
    413: Meaning.TOO_LARGE,
    **dict.fromkeys((408, 425, 429, 503), Meaning.BUSY),
}
"""Codes that mean something else than their class does."""

_OF_GATEWAYS: Final = (502, 504)
"""Said for a destination that did not answer itself."""

_OF_CLASS: Final = {
    1: Meaning.FAILED,  # the client passes over 1xx; a last one is no answer to a POST
    2: Meaning.TAKEN,
    3: Meaning.PAUSED,  # never followed: a redirect would carry the secret elsewhere
    4: Meaning.UNFIT,
    5: Meaning.FAILED,
}


def classify_response(
    answer: HttpResponse, differing: Mapping[int, Meaning] | None = None
) -> DeliveryResult:
    """The result on a whole request.

    Args:
        answer: The response.
        differing: Codes that the protocol gives another meaning.
    """
    meaning = (differing or {}).get(answer.status) or MEANINGS.get(answer.status)
    return to_result(meaning or _OF_CLASS.get(answer.status // 100, Meaning.FAILED), answer)


def to_result(meaning: Meaning, answer: HttpResponse) -> DeliveryResult:
    """The result that a meaning is, with the answer as its reason."""
    fault = answer.fault
    match meaning:
        case Meaning.TAKEN:
            return Success()
        case Meaning.TOO_LARGE:
            return TooLarge(fault)
        case Meaning.UNFIT:
            return Rejected(fault)
        case Meaning.BUSY:
            return Retryable(fault.reason, answer.after_s)
        case Meaning.FAILED:
            return Failed(fault, answer.after_s, answered=answer.status not in _OF_GATEWAYS)
        case Meaning.PAUSED:
            return Paused(fault.reason, answer.after_s)
        case _:
            assert_never(meaning)
