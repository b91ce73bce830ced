"""A trace says how many records applications did not hand over, and why."""

from typing import Any

from penstock.deploy.trace.applications import APPLICATIONS_MAX, NotHandedOver, not_handed_over
from tests.support.console import a_status

NOTHING = {"emitted": 5, "acked": 5, "queued": 0, "spooled": 0, "dropped": {}}


def a_collector(**apps: Any) -> dict[str, Any]:
    info = {"reconciliation": {"app": {"received": 1}}, "apps": {"app": apps}}
    return a_status("collector", "c", info=info)


def sentences(found: list[NotHandedOver]) -> list[str]:
    return [it.sentence for it in found]


def test_each_kind_of_record_that_was_not_handed_over_is_counted() -> None:
    sender = {"service": "shop", "emitted": 2000, "acked": 5, "queued": 7, "spooled": 8,
              "dropped": {"sampled": 20, "queue_full": 1900}, "lost": 3, "difference": 5,
              "time_ns": 9}  # fmt: skip
    senders = {"1": sender, "2": {"service": "quiet", **NOTHING}}
    ended = {"shop": {"emitted": 6, "acked": 4, "dropped_sampled": 2}}
    (found,) = not_handed_over({"edge": a_collector(senders=senders, ended=ended)})
    assert found.sentence == (
        "shop, which reports to edge, did not hand over 1,922 dropped by the library"
        " (queue_full 1,900, sampled 22), 3 lost with a process that ended, 7 in memory,"
        " 8 in a file, 2 not explained"
    )
    assert found.as_json() == {
        "collector": "edge", "whose": "shop", "service": "shop",
        "dropped": {"sampled": 22, "queue_full": 1900}, "queued": 7, "spooled": 8, "lost": 3,
        "unexplained": 2, "reported_ns": 9,
    }  # fmt: skip


def test_counts_of_a_service_are_its_own_and_those_that_may_be_its() -> None:
    def sender(service: str) -> dict[str, Any]:
        return {"service": service, "emitted": 3, "dropped": {"sampled": 3}}

    apps = {
        "senders": {"1": sender("shop"), "2": sender("cart"), "3": sender("")},
        "unreported": {"acked": 9, "dropped_refused": 4},
    }
    found = not_handed_over({"edge": a_collector(**apps), "new": {}}, "shop")
    about = ", which reports to edge, did not hand over"
    assert sentences(found) == [
        f"applications that report no account{about} 4 dropped by the library (refused 4)",
        f"an application without a service{about} 3 dropped by the library (sampled 3)",
        f"shop{about} 3 dropped by the library (sampled 3)",
    ]


def test_very_many_applications_are_added_up_beyond_those_with_the_most() -> None:
    senders = {
        str(number): {"service": f"s{number}", "dropped": {"sampled": number}}
        for number in range(1, APPLICATIONS_MAX + 3)
    }
    found = not_handed_over({"edge": a_collector(senders=senders)})
    assert len(found) == APPLICATIONS_MAX + 1
    assert found[0].service == f"s{APPLICATIONS_MAX + 2}"
    words = "2 more applications did not hand over 3 dropped by the library (sampled 3)"
    assert found[-1].sentence == words
