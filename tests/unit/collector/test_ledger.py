"""The account of every record: each step's counts, and that it explains every record."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from penstock.collector.ledger import REFUSED_REASONS_MAX, SENDER_DROPPED, Account, Ledger

NAMES = [field.name for field in dataclasses.fields(Account)]


def counts(account: Account) -> dict[str, Any]:
    """Fields that are not empty."""
    return {name: value for name in NAMES if (value := getattr(account, name))}


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (lambda it: it.spooled("app", 5), {"received": 5, "spooled": 5, "taken": 5}),
        (lambda it: it.recovered("app", 5), {"recovered": 5, "spooled": 5, "taken": 5}),
        (lambda it: it.read("app", 5), {"received": 5, "pending": 5}),
        (lambda it: it.dropped("app", "full", 5), {"received": 5, "dropped": {"full": 5}}),
    ],
)
def test_what_comes_in_is_counted_and_held(
    step: Callable[[Ledger], None], expected: dict[str, Any]
) -> None:
    ledger = Ledger()
    step(ledger)
    assert counts(ledger["app"]) == expected
    assert ledger["app"].difference == 0
    step(ledger)
    assert ledger["app"].difference == 0
    assert list(ledger.accounts) == ["app"]


def test_a_unit_that_is_decoded_has_as_many_records_as_were_found() -> None:
    ledger, account = Ledger(), Account()
    ledger.accounts["app"] = account
    ledger.spooled("app", 5)
    ledger.decoded("app", counted=5, found=7)
    assert counts(account) == {"received": 7, "pending": 7, "taken": 5}
    ledger.sorted("app", taken=6, copies=3, refused=2)
    assert counts(account) == {"received": 7, "copied": 3, "pending": 7 + 3 - 7, "taken": 5}
    account.in_queues = 7
    assert (account.held, account.difference) == (10, 0)


def test_a_unit_that_is_given_up_is_dropped_and_one_that_failed_is_read_again() -> None:
    ledger = Ledger()
    ledger.spooled("app", 5)
    ledger.shed("app", "expired", 3)
    assert counts(ledger["app"]) == {
        "received": 5, "spooled": 2, "taken": 5, "dropped": {"expired": 3},
    }  # fmt: skip
    ledger.read("file", 4)
    ledger.unread("file")
    assert counts(ledger["file"]) == {}
    assert (ledger["app"].difference, ledger["file"].difference) == (0, 0)


def _nine(*names: str) -> dict[str, Any]:
    return dict.fromkeys(names, 9)


@pytest.mark.parametrize("came", ["received", "recovered", "copied"])
@pytest.mark.parametrize(
    "ended",
    [
        "delivered", "filtered", "sampled", "deduplicated", "aggregated", "quarantined",
        "refused_by_logd", "spooled", "pending", "in_queues",
    ],
)  # fmt: skip
def test_what_came_less_what_ended_and_is_held_is_not_explained(came: str, ended: str) -> None:
    assert dataclasses.replace(Account(), **_nine(came)).difference == 9
    assert dataclasses.replace(Account(), **_nine(ended)).difference == -9
    account = dataclasses.replace(Account(), **_nine(came, ended))
    assert account.difference == 0
    account.dropped["full"] += 2
    account.dropped["expired"] += 1
    assert account.difference == -3


def test_so_many_reasons_of_refusal_are_named_and_others_are_counted_together() -> None:
    account = Account()
    for number in range(REFUSED_REASONS_MAX + 2):
        account.refuse(f"reason {number}", 1)
    account.refuse("reason 0", 2)
    assert account.refused["reason 0"] == 3
    assert account.refused["other"] == 2
    assert len(account.refused) == REFUSED_REASONS_MAX + 1


def test_a_status_has_sums_and_what_senders_dropped_by_reason() -> None:
    account = Account(quarantined=2, refused_by_logd=3, spooled=1, pending=2, in_queues=4)
    account.notes.update({f"{SENDER_DROPPED}full": 5, f"{SENDER_DROPPED}late": 0, "scrubbed": 6})
    shown = account.as_dict()
    assert (shown["quarantined"], shown["held"], shown["scrubbed"]) == (5, 7, 6)
    assert shown["sender_dropped"] == {"full": 5}
