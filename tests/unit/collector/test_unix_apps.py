"""The account of applications: what each sender reports, added up, and what makes a difference."""

from collections import Counter
from typing import Any

from penstock.collector.sources.unix.apps import (
    COMES_BACK_NS,
    LOST_SHOWN_NS,
    AppAccounts,
    BatchReport,
    SenderReport,
    merge_apps,
)

MAX_SENDERS = 8


class Apps:
    """The senders of a source, each with one connection, at a time that stands until it is set."""

    def __init__(self) -> None:
        self.accounts = AppAccounts(MAX_SENDERS)
        self.now_ns = 0

    def batch(
        self, number: int, emitted: int, acked: int, *, queued: int = 0, sender: str = "s",
        service: str = "shop", spooled: int = 0, durable: bool = True,
    ) -> None:  # fmt: skip
        """A batch of 10 records, with what the sender says beside."""
        totals, dropped = SenderReport(emitted, acked, queued, spooled), Counter({"queue_full": 1})
        report = BatchReport(service, number, 10, totals, dropped, self.now_ns)
        self.accounts.report(sender, report, self.now_ns)
        if number == 1:
            self.accounts.connect(sender)
        if durable:
            self.accounts.durable(sender, number)

    def end(self, sender: str = "s") -> None:
        self.accounts.disconnect(sender, self.now_ns)

    def shown(self, sender: str = "s") -> dict[str, Any]:
        found: dict[str, Any] = self.accounts.as_dict(self.now_ns)["senders"][sender]
        return found


def test_a_batch_is_queued_until_it_is_durable() -> None:
    apps = Apps()
    apps.batch(1, emitted=18, acked=0, queued=7, durable=False)
    assert (apps.shown()["acked"], apps.shown()["queued"], apps.shown()["difference"]) == (0, 17, 0)
    apps.accounts.durable("s", 1)
    assert (apps.shown()["acked"], apps.shown()["queued"], apps.shown()["difference"]) == (10, 7, 0)


def test_a_sum_that_is_not_even_is_a_difference() -> None:
    apps = Apps()
    apps.batch(1, emitted=20, acked=0, queued=7)
    assert apps.shown()["difference"] == 2


def test_what_is_acknowledged_without_having_been_here_is_counted() -> None:
    apps = Apps()
    apps.batch(1, emitted=11, acked=0)
    apps.batch(2, emitted=26, acked=15)
    assert (apps.shown()["difference"], apps.shown()["unseen"]) == (0, 5)
    apps.batch(3, emitted=36, acked=25)
    assert apps.shown()["unseen"] == 5


def test_a_batch_that_is_sent_again_is_counted_once() -> None:
    apps = Apps()
    apps.batch(1, emitted=11, acked=0)
    apps.batch(1, emitted=14, acked=0, queued=3)
    apps.batch(2, emitted=24, acked=10, queued=3)
    assert (apps.shown()["acked"], apps.shown()["unseen"], apps.shown()["difference"]) == (20, 0, 0)


def test_batches_that_another_collector_took_are_no_difference() -> None:
    apps = Apps()
    apps.batch(1, emitted=11, acked=0)
    apps.batch(7, emitted=71, acked=60)
    assert apps.shown()["unseen"] == 0


def test_what_waited_in_a_process_that_ended_is_missing_and_later_dropped_by_its_reason() -> None:
    apps = Apps()
    apps.batch(1, emitted=21, acked=0, queued=4, spooled=6)
    apps.end()
    apps.now_ns = COMES_BACK_NS
    assert (apps.shown()["queued"], apps.shown()["difference"]) == (4, 0)
    apps.now_ns += 1
    assert (apps.shown()["queued"], apps.shown()["lost"], apps.shown()["difference"]) == (0, 4, 4)
    assert apps.shown()["spooled"] == 6
    apps.now_ns = LOST_SHOWN_NS + 1
    assert apps.shown()["dropped"] == {"queue_full": 1, "process_ended": 4}
    assert apps.shown()["difference"] == 0


def test_a_sender_that_comes_back_has_lost_nothing() -> None:
    apps = Apps()
    apps.batch(1, emitted=15, acked=0, queued=4)
    apps.end()
    apps.accounts.connect("s")
    apps.now_ns = 2 * COMES_BACK_NS
    assert (apps.shown()["queued"], apps.shown()["difference"]) == (4, 0)


def test_counts_of_an_adopted_file_begin_again() -> None:
    apps = Apps()
    apps.batch(1, emitted=21, acked=0, spooled=10)
    apps.end()
    apps.batch(2, emitted=11, acked=0)
    assert apps.accounts.ended["shop"] == {"acked": 10, "emitted": 11, "dropped_queue_full": 1}
    assert (apps.shown()["emitted"], apps.shown()["difference"]) == (11, 0)


def test_an_adopted_file_that_holds_more_than_its_process_had_emitted_is_another_account() -> None:
    """The process that was killed had 10 records acknowledged, and 40 in its file."""
    apps = Apps()
    apps.batch(1, emitted=11, acked=0)
    apps.end()
    apps.batch(2, emitted=41, acked=0, spooled=30)
    assert apps.accounts.ended["shop"] == {"acked": 10, "emitted": 11, "dropped_queue_full": 1}
    assert (apps.shown()["acked"], apps.shown()["unseen"], apps.shown()["difference"]) == (10, 0, 0)


def test_an_adopted_file_whose_batch_was_on_its_way_is_another_account() -> None:
    apps = Apps()
    apps.batch(1, emitted=11, acked=0)
    apps.batch(2, emitted=21, acked=10)
    apps.end()
    apps.batch(2, emitted=31, acked=0, spooled=20)
    assert apps.accounts.ended["shop"]["acked"] == 10, "its last batch is in the other account"
    assert (apps.shown()["emitted"], apps.shown()["unseen"]) == (31, 0)


def test_a_process_that_connects_again_goes_on_with_its_account() -> None:
    """The ack of its first batch did not reach it, so it sends that again."""
    apps = Apps()
    apps.batch(1, emitted=11, acked=0)
    apps.end()
    apps.batch(1, emitted=21, acked=0, spooled=10)
    apps.end()
    apps.batch(2, emitted=21, acked=10)
    assert apps.accounts.ended == {}
    assert (apps.shown()["acked"], apps.shown()["unseen"], apps.shown()["difference"]) == (20, 0, 0)


def test_a_connected_process_that_counts_too_few_is_off() -> None:
    apps = Apps()
    apps.batch(1, emitted=11, acked=0)
    apps.batch(2, emitted=17, acked=6)
    assert apps.accounts.ended == {}
    assert apps.shown()["unseen"] == -4


def test_a_batch_that_is_sent_again_while_it_is_written_is_new_once() -> None:
    accounts = AppAccounts(MAX_SENDERS)
    assert [accounts.begin_write("s", number) for number in (1, 2, 1)] == [True, True, False]
    assert accounts.begin_write("t", 1)
    accounts.end_write("s")  # the first
    assert not accounts.begin_write("s", 1), "it is durable, and the answer waits for the second"
    for _ in range(3):
        accounts.end_write("s")
    assert accounts.begin_write("s", 1), "it failed, and is written again"


def test_of_very_many_senders_those_that_ended_are_added_up() -> None:
    apps = Apps()
    for number in range(MAX_SENDERS):
        apps.batch(1, emitted=14, acked=0, queued=3, sender=f"s{number}")
    apps.end("s5")
    apps.batch(1, emitted=11, acked=0, sender="too many")  # it may come back
    assert "too many" not in apps.accounts.as_dict(0)["senders"]
    apps.now_ns = COMES_BACK_NS + 1
    apps.batch(1, emitted=11, acked=0, sender="next")
    sums = {"acked": 10, "emitted": 14, "dropped_queue_full": 1, "dropped_process_ended": 3}
    assert apps.accounts.ended["shop"] == sums
    senders = apps.accounts.as_dict(apps.now_ns)["senders"]
    assert len(senders) == MAX_SENDERS
    assert "s5" not in senders
    apps.batch(2, emitted=24, acked=10, queued=3, sender="s6")
    assert apps.shown("s6")["acked"] == 20, "those that are known go on"


def test_a_smaller_limit_adds_up_as_many_senders_as_it_takes() -> None:
    apps = Apps()
    for number in range(MAX_SENDERS):
        apps.batch(1, emitted=11, acked=0, sender=f"s{number}")
        apps.end(f"s{number}")
    apps.now_ns = COMES_BACK_NS + 1
    apps.accounts.max_senders = 2
    apps.batch(1, emitted=11, acked=0, sender="next")
    assert [*apps.accounts.as_dict(0)["senders"]] == [f"s{MAX_SENDERS - 1}", "next"]
    assert apps.accounts.ended["shop"]["emitted"] == 11 * (MAX_SENDERS - 1)


def test_services_beyond_the_limit_are_added_up_together() -> None:
    apps = Apps()
    for number in range(2 * MAX_SENDERS + 3):
        apps.batch(1, emitted=11, acked=0, sender=f"s{number}", service=f"service {number}")
        apps.end(f"s{number}")
        apps.now_ns += COMES_BACK_NS + 1
    shown = apps.accounts.as_dict(apps.now_ns)
    assert (len(shown["senders"]), len(shown["ended"])) == (MAX_SENDERS, MAX_SENDERS)
    assert shown["others"] == {"acked": 30, "emitted": 33, "dropped_queue_full": 3}


def test_sums_of_several_workers_are_added() -> None:
    workers = [Apps(), Apps()]
    for apps in workers:
        apps.accounts.untracked.update(acked=3, dropped_sampled=1)
        apps.accounts.others["acked"] += 2
    whole = merge_apps([one.accounts.as_dict(0) for one in workers])
    assert whole["untracked"] == {"acked": 6, "dropped_sampled": 2}
    assert (whole["others"], whole["unreported"]) == ({"acked": 4}, {})


def test_of_a_sender_that_several_workers_know_the_newest_report_counts() -> None:
    first, second = Apps(), Apps()
    first.batch(1, emitted=15, acked=0, queued=4)
    second.now_ns = 1
    second.batch(2, emitted=21, acked=10)
    whole = merge_apps([one.accounts.as_dict(2) for one in (second, first)])
    assert whole["senders"]["s"]["emitted"] == 21
