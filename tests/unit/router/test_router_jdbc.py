"""The JDBC sink without a database: what errors mean, and what nobody may see."""

import pytest

from penstock.router.delivery.result import Failed, Paused, Rejected, Retryable
from penstock.router.sinks.jdbc.sink import classify_error, secrets_in


@pytest.mark.parametrize(
    ("state", "kind", "verdict"),
    [
        ("22001", "data", Rejected),
        ("23505", "other", Rejected),
        ("23502", "constraint", Paused),
        ("23000", "constraint", Rejected),
        ("40001", "other", Retryable),
        ("53300", "other", Retryable),
        ("HYT00", "other", Retryable),
        ("28000", "other", Paused),
        ("42S02", "other", Paused),
        ("S0001", "constraint", Rejected),
        ("72000", "data", Rejected),
        ("61000", "passing", Retryable),
        ("S0002", "statement", Paused),
        (None, "login", Paused),
        (None, "other", Failed),
        ("08006", "other", Failed),
        ("XX000", "other", Failed),
    ],
)
def test_an_error_means_what_the_standard_or_else_its_category_says(
    state: str | None, kind: str, verdict: type
) -> None:
    assert type(classify_error(state, kind, "as told")) is verdict


def test_a_connection_that_broke_says_nothing_about_the_records() -> None:
    for state, answered in (("08006", False), ("57014", False), ("XX000", True), (None, True)):
        found = classify_error(state, "other", "as told")
        assert isinstance(found, Failed)
        assert found.answered is answered


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        ("jdbc:postgresql://db:5432/x?user=me&password=hu%40sh&ssl=true", ["hu%40sh"]),
        ("jdbc:sqlserver://db:1433;databaseName=x;user=me;password=hush;", ["hush"]),
        ("jdbc:mysql://me:hush@db:3306/x", ["hush"]),
        ("jdbc:oracle:thin:me/hush@//db:1521/x", ["hush"]),
        ("jdbc:snowflake://db/?private_key_pwd=one&token=two", ["one", "two"]),
        ("jdbc:h2:/var/lib/x;USER=me;PASSWORD=hush", ["hush"]),
        ("jdbc:postgresql://db.example:5432/telemetry?sslmode=verify-full", []),
    ],
)
def test_what_nobody_may_see_of_a_url(url: str, secrets: list[str]) -> None:
    assert secrets_in(url) == secrets
