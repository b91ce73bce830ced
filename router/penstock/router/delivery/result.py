"""The delivery results: the meaning of a response for the records of a request, by any protocol.

A sink's classifier reads an answer and returns one of these; `delivery.core` does what it asks for.

    result           meaning                                        what follows
    Success          every record is there for good                 next request
    Accepted         taken, to be confirmed by the destination      next request; asked for later
    PartialFailure   each record has its own outcome                only some are sent again
    TooLarge         the request is                                 halved; a lone one is refused
    Rejected         at least one record will never be taken        bisected; a lone one is refused
    Retryable        nothing taken, the request is not to blame     the same again, later
    Failed           no answer, or a failure: a record's fault?     later; bisected if it stays
    Paused           the sender is refused, not its records         the same again, later
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Success:
    """Every record is there for good."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """Every record was taken; `token` is what the destination confirms them by."""

    token: str


@dataclass(frozen=True, slots=True)
class Fault:
    """Why one record will never be taken.

    Attributes:
        code: Code for searches: `http_400`, or the protocol's own.
        reason: Description for people.
        status: Status of HTTP; 0 where there is none.
        about_record: Whether it can be about nothing but this record. Otherwise a setting may be
            wrong, and every record is refused.
    """

    code: str
    reason: str
    status: int = 0
    about_record: bool = False


@dataclass(frozen=True, slots=True)
class PartialFailure:
    """Records by their place in the request; those that are not named are taken.

    Attributes:
        refused: Records that are refused for good.
        failed: Perhaps their own fault, perhaps not.
        again: They are not to blame: later where there is a `reason`, else at once.
    """

    refused: tuple[tuple[int, Fault], ...] = ()
    failed: tuple[tuple[int, Fault], ...] = ()
    again: tuple[int, ...] = ()
    reason: str = ""
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TooLarge:
    """The request is too large for the destination."""

    fault: Fault


@dataclass(frozen=True, slots=True)
class Rejected:
    """None of the records was accepted, and at least one never will be."""

    fault: Fault


@dataclass(frozen=True, slots=True)
class Retryable:
    """Nothing was taken and nothing is wrong with the request."""

    reason: str
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Failed:
    """Nobody knows why; perhaps a record makes the destination fail.

    Attributes:
        answered: The destination said so itself; else it fell silent with the request in hand.
    """

    fault: Fault
    after_s: float = 0.0
    answered: bool = True


@dataclass(frozen=True, slots=True)
class Paused:
    """The destination refuses the sender or the address: somebody has to correct something."""

    reason: str
    after_s: float = 0.0


DeliveryResult = (
    Success | Accepted | PartialFailure | TooLarge | Rejected | Retryable | Failed | Paused
)
