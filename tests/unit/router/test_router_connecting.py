"""What it means that a server lets nobody in: an outage is waited for, a wrong password is told."""

import pytest

from penstock.logd.publisher.connecting import is_refusal
from penstock.router.delivery.result import Paused, Retryable
from penstock.router.sinks.postgres import refusal_of

_AT = 'connection failed: connection to server at "10.0.0.7", port 5432 failed: '


@pytest.mark.parametrize(
    ("state", "text", "verdict"),
    [
        (None, _AT + "Connection refused\n\tIs the server running on that host?", Retryable),
        (None, "connection timeout expired", Retryable),
        (None, "failed to resolve host 'nowhere': Name or service not known", Retryable),
        (None, _AT + "FATAL:  the database system is starting up", Retryable),
        (None, _AT + "FATAL:  sorry, too many clients already", Retryable),
        (None, _AT + 'FATAL:  password authentication failed for user "x"', Paused),
        (None, _AT + 'FATAL:  database "y" does not exist', Paused),
        (None, _AT + "fe_sendauth: no password supplied", Paused),
        ("42501", "permission denied for schema public", Paused),
        ("57014", "canceling statement due to statement timeout", Retryable),
        ("57P01", "terminating connection due to administrator command", Retryable),
    ],
)
def test_only_what_somebody_must_correct_pauses_a_sink(
    state: str | None, text: str, verdict: type
) -> None:
    assert type(refusal_of(state, text)) is verdict


def test_a_reason_is_one_line() -> None:
    refused = refusal_of(None, _AT + "Connection refused\n\tIs the server running?")
    assert isinstance(refused, Retryable)
    assert refused.reason == f"PostgreSQL: {_AT}Connection refused"


@pytest.mark.parametrize(
    ("said", "refusal"),
    [
        ("'Authorization Violation'", True),
        ("nats: 'User Authentication Expired'", True),
        ("'Account Authentication Expired'", True),
        ("'maximum account active connections exceeded'", False),
        ("'maximum connections exceeded'", False),
        ("[Errno 111] Connect call failed", False),
    ],
)
def test_a_nats_server_without_room_is_an_outage(said: str, refusal: bool) -> None:
    assert is_refusal(said) == refusal
