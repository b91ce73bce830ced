"""The account over all parts: what balances, what settles, and what is a fault."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from penstock.base.errors import ExitCode
from penstock.deploy.account.account import Account, Answer
from penstock.deploy.account.command import exit_code
from penstock.deploy.account.figures import Reading, SinkFigures
from penstock.deploy.account.rows import APPS_MAX, Row, Start, State, rows_of, worst
from penstock.deploy.account.table import account_table
from tests.support.console import a_stage, a_status

BALANCED, SETTLING, UNKNOWN, OFF = State
APPS = {"senders": {}, "ended": {}, "unreported": {"acked": 100, "dropped_queue_full": 3}}


def sender(service: str = "shop", **more: Any) -> dict[str, Any]:
    """A process that emitted 20, of which 12 are acknowledged."""
    return {"service": service, "emitted": 20, "acked": 12, "dropped": {"queue_full": 3},
            "queued": 4, "spooled": 1, "lost": 0, "difference": 0, "unseen": 0} | more  # fmt: skip


def app_rows(*senders: dict[str, Any], **account: Any) -> list[Row]:
    told = {str(number): one for number, one in enumerate(senders)}
    apps = {"senders": told, "ended": {}, "unreported": {}} | account
    info = {"reconciliation": {"unix": {"received": 1}}, "apps": {"unix": apps}}
    found = rows_of(None, Reading({"edge-1": a_status("collector", "c", info=info)}))
    return [row for row in found if row.stage == "apps"]


def collector(
    delivered: int = 90,
    *,
    held: int = 0,
    started_ms: int = 20,
    workers_started_ms: tuple[int, ...] = (),
    age_ms: int = 0,
    **more: Any,
) -> Any:
    account = {"recovered": 0, "received": delivered + held + 10, "delivered": delivered,
               "filtered": 8, "dropped": {"throttled": 2}, "held": held,
               "difference": 0} | more  # fmt: skip
    workers = {str(i): {"started_ms": it} for i, it in enumerate(workers_started_ms)}
    info = {"reconciliation": {"apps": account}, "apps": {"apps": APPS}, "workers": workers}
    if age_ms:
        info["age_ms"] = age_ms
    stage = a_stage("source/unix:apps", 100)
    return a_status("collector", "c", stage, info=info, started_ms=started_ms)


def logd(stored: int = 90, *, started_ms: int = 10, end: int | None = None, **more: Any) -> Any:
    detail = {"high_watermark": (stored + 1000 if end is None else end) - 1, "duplicates": 4}
    stage = a_stage("stream/logs", stored + 4, sent=stored, detail=detail) | more
    return a_status(
        "logd", "l", stage, a_stage("stream/__activity", 7, sent=3), started_ms=started_ms
    )


def router(read: int = 1000, delivered: int = 80, **more: Any) -> Any:
    detail = {"dead_letters": 3, "left_out_routing": 7, "files": 99}
    info = {"log": {"logs": 1090}, "sinks": {"lake": {"committed": {"logs": read}}}}
    stage = a_stage("sink/lake", 90, sent=delivered, detail=detail, lag=90) | more
    return a_status("router", "r", stage, info=info)


def reading(**changes: Any) -> Reading:
    statuses = {"collector": collector(), "logd": logd(), "router": router()} | changes
    return Reading(statuses)


def rows(before: Reading, after: Reading, start: Start | None = None) -> dict[str, Row]:
    return {row.name: row for row in rows_of(before, after, start)}


def test_a_pipeline_at_rest_balances_in_every_row() -> None:
    found = rows(reading(), reading())
    assert {name: row.state for name, row in found.items()} == dict.fromkeys(
        (
            "apps collector", "collector collector", "collectors → log collector", "log logd",
            "log → sink router/lake", "sink router/lake",
        ),
        BALANCED,
    )  # fmt: skip
    assert found["apps collector"].statement == ("103 emitted = 100 acked + 3 dropped (queue_full)")
    assert found["collector collector"].statement == (
        "100 received = 90 delivered + 8 filtered + 2 dropped (throttled)"
    )
    assert found["collectors → log collector"].statement == "90 delivered = 90 stored"
    assert found["log logd"].statement == "94 received = 90 stored + 4 duplicates"
    assert found["log → sink router/lake"].statement == "1,090 in the log = 1,000 read + 90 waiting"
    assert found["sink router/lake"].statement == (
        "90 read = 80 delivered + 3 dead letters + 7 left out (routing)"
    )


@pytest.mark.parametrize(
    ("change", "name", "difference", "host"),
    [
        ({"collector": collector(difference=-4)}, "collector collector", 4, "collector"),
        ({"logd": logd(89)}, "collectors → log collector", 1, "collector"),
        ({"logd": logd(lag=5)}, "log logd", -5, "logd"),
        ({"logd": logd(received=99)}, "log logd", 5, "logd"),
        ({"router": router(delivered=79)}, "sink router/lake", 1, "router/lake"),
        ({"router": router(read=1095)}, "log → sink router/lake", -5, "router/lake"),
    ],
)
def test_a_row_that_does_not_balance_names_the_host(
    change: Mapping[str, Any], name: str, difference: int, host: str
) -> None:
    both = reading(**change)
    row = rows(both, both)[name]
    assert (row.state, row.difference, row.part) == (OFF, difference, host)
    assert f"{abs(difference)} {'missing' if difference > 0 else 'too many'}" in row.statement
    assert exit_code([*rows(both, both).values()]) is ExitCode.FAILURE


def test_each_service_has_a_row_of_its_processes() -> None:
    ended = {"shop": {"emitted": 5, "acked": 4, "dropped_too_large": 1}}
    billing, shop = app_rows(sender(), sender(), sender("billing"), ended=ended)
    assert (billing.name, shop.name) == ("apps edge-1/billing", "apps edge-1/shop")
    assert (billing.state, shop.state) == (BALANCED, BALANCED)
    assert billing.statement == (
        "20 emitted = 12 acked + 4 queued + 1 spooled + 3 dropped (queue_full)"
    )
    assert (shop.came["emitted"], shop.went["acked"], shop.difference) == (45, 28, 0)


@pytest.mark.parametrize(
    ("change", "difference", "says"),
    [
        ({"queued": 0, "lost": 4, "difference": 4}, 4, "4 were in the memory of a process that"),
        ({"difference": -2, "queued": 6}, 2, ""),
        ({"unseen": -3}, 3, "counts 3 records fewer as acknowledged than this collector"),
        ({"unseen": 1}, 1, "counts 1 record more as acknowledged than this collector"),
    ],
)
def test_an_app_that_does_not_balance_is_named(
    change: dict[str, Any], difference: int, says: str
) -> None:
    shop, billing = app_rows(sender("billing"), sender(), sender(**change))
    assert (billing.name, billing.state) == ("apps edge-1/billing", BALANCED)
    assert (shop.name, shop.state, shop.difference) == ("apps edge-1/shop", OFF, difference)
    assert says in shop.note


def test_processes_that_a_collector_does_not_tell_apart_are_named() -> None:
    sums = {"acked": 5, "dropped_sampled": 2}
    rows = app_rows(sender(), others=sums, untracked=sums, unreported=sums)
    assert [row.part for row in rows] == [
        "edge-1/shop", "edge-1/ended processes", "edge-1/further processes", "edge-1",
    ]  # fmt: skip
    for row in rows[1:]:
        assert row.statement.startswith("7 emitted = 5 acked + 2 dropped (sampled); of ")
    assert "beyond the source's max_senders" in rows[2].note


def test_many_apps_share_a_row_and_those_that_are_off_come_first() -> None:
    names = [f"app-{number:02d}" for number in range(APPS_MAX + 2)]
    found = app_rows(*(sender(name, difference=int(name == names[-1])) for name in names))
    assert [row.part for row in found[:2]] == [f"edge-1/{names[-1]}", "edge-1/app-00"]
    assert len(found) == APPS_MAX + 1
    assert (found[-1].part, found[-1].came, found[-1].note) == (
        "edge-1/…", {"emitted": 40}, "2 more applications",
    )  # fmt: skip


def test_what_was_delivered_before_the_log_was_read_must_be_in_it() -> None:
    """The collector goes on between the readings: its second figure is never compared."""
    before, after = reading(), reading(collector=collector(500))
    assert rows(before, after)["collectors → log collector"].state is BALANCED
    late = reading(collector=collector(500))
    assert rows(late, after)["collectors → log collector"].state is OFF


def test_records_that_an_earlier_run_left_may_be_in_the_log_already() -> None:
    both = reading(logd=logd(86), collector=collector(recovered=4))
    assert rows(both, both)["collectors → log collector"].state is BALANCED
    both = reading(logd=logd(85), collector=collector(recovered=4))
    assert rows(both, both)["collectors → log collector"].difference == 1


def test_more_in_the_log_is_what_waits_for_its_ack_or_of_other_publishers() -> None:
    both = reading(logd=logd(97), collector=collector(held=7))
    row = rows(both, both)["collectors → log collector"]
    assert (row.state, row.note) == (BALANCED, "7 on the way")
    both = reading(logd=logd(100), collector=collector(held=7))
    row = rows(both, both)["collectors → log collector"]
    assert row.state is BALANCED
    assert row.note == (
        "3 records more than these collectors delivered: of other publishers, or from before a"
        " restart"
    )


def test_what_was_delivered_between_the_readings_is_not_of_other_publishers() -> None:
    row = rows(reading(), reading(collector=collector(174), logd=logd(174)))[HOP]
    assert (row.state, row.note) == (BALANCED, "84 on the way")


def test_a_log_that_is_read_between_its_counters_settles() -> None:
    before, after = reading(), reading(logd=logd(190, received=197))
    row = rows(before, after)["log logd"]
    assert (row.state, row.difference) == (SETTLING, 3)
    assert rows(after, after)["log logd"].state is OFF, "nothing moved, so nothing is on its way"
    (alone,) = [row for row in rows_of(None, after) if row.stage == "log"]
    assert alone.state is SETTLING, "one reading accuses nobody"


def test_delivered_again_or_before_the_batch_is_read_is_no_fault() -> None:
    both = reading(router=router(delivered=85))
    row = rows(both, both)["sink router/lake"]
    assert (row.state, row.note) == (BALANCED, "5 records in work or delivered again")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"logd": logd(started_ms=30)}, "logd started after a collector"),
        ({"logd": logd(started_ms=0)}, "logd started after a collector"),
        ({"logd-2": logd()}, "of several nodes"),
    ],
)
def test_what_cannot_be_compared_says_why_and_is_no_fault(
    changes: Mapping[str, Any], says: str
) -> None:
    both = reading(**changes)
    found = rows_of(both, both)
    (row,) = [row for row in found if row.stage == "collectors → log"]
    assert row.state is UNKNOWN
    assert says in row.statement
    assert exit_code(found) is ExitCode.OK


def test_nodes_of_a_job_that_nobody_asked_are_no_fault() -> None:
    both = reading(logd=logd(end=500))
    row = rows(both, both)["log → sink router/lake"]
    assert row.state is UNKNOWN
    assert "not every node" in row.note


def test_a_part_that_does_not_answer_is_named() -> None:
    silent = Reading({**reading().statuses, "collector-2": None}, {"collector-2": "refused"})
    found = rows_of(silent, silent)
    assert found[0].name == "part collector-2"
    assert found[0].statement == "not asked: refused"
    assert exit_code(found) is ExitCode.UNAVAILABLE


def test_a_row_comes_back_as_it_was_written() -> None:
    written = rows_of(None, reading(logd=logd(80)))
    assert [Row.read(row.as_dict()) for row in written] == written


def test_the_table_shows_every_row() -> None:
    found = rows_of(None, reading())
    assert account_table(found).row_count == len(found)


class Polled:
    """An account that takes whole readings, one after the other."""

    def __init__(self) -> None:
        self.account = Account()

    def take(self, **changes: Any) -> dict[str, Row]:
        self.account.take(reading(**changes))
        return {row.name: row for row in self.account.rows}


HOP = "collectors → log collector"


def test_a_comparison_does_not_begin_with_figures_of_a_collector_that_are_old() -> None:
    """It has delivered more by then, which the log had before the comparison."""
    polled = Polled()
    nodes = {"logd": logd(end=5000, started_ms=99), "logd-2": logd(end=4990)}
    for _ in range(3):
        polled.take(**nodes, collector=collector(40, age_ms=1200))
    *_, row = [polled.take(**nodes).get(HOP) for _ in range(3)]
    assert row is not None
    assert (row.state, row.statement) == (BALANCED, "0 delivered = 0 stored")


def test_a_console_compares_from_the_moment_when_it_began() -> None:
    """It needs no time of start where there are several nodes."""
    polled = Polled()
    nodes = {"logd": logd(end=5000, started_ms=99), "logd-2": logd(end=4990)}
    for _ in range(2):
        polled.take(**nodes)
    after = {"logd": logd(end=5040), "logd-2": logd(end=5050)}
    assert polled.take(**after, collector=collector(150))[HOP].state is BALANCED
    row = polled.take(**after, collector=collector(150))[HOP]
    assert (row.state, row.difference) == (OFF, 10), "60 were delivered and 50 stored"
    after["logd-2"] = logd(end=5060)
    row = polled.take(**after, collector=collector(150))[HOP]
    assert (row.state, row.statement) == (BALANCED, "60 delivered = 60 stored")


def test_a_comparison_that_began_with_an_empty_log_misses_nothing() -> None:
    polled = Polled()
    for _ in range(2):
        polled.take(collector=collector(0), logd=logd(0, end=0))
    *_, row = [polled.take(collector=collector(1), logd=logd(1, end=1))[HOP] for _ in range(2)]
    assert (row.state, row.statement) == (BALANCED, "1 delivered = 1 stored")


def test_a_sink_that_has_all_of_the_log_is_at_its_end() -> None:
    both = reading(logd=logd(end=1090), router=router(read=1090))
    row = rows(both, both)["log → sink router/lake"]
    assert (row.state, row.statement) == (BALANCED, "1,090 in the log = 1,090 read")


def test_a_job_that_is_asked_after_the_log_knows_more_of_it() -> None:
    later = router()
    later["info"]["log"]["logs"] = 1095
    row = rows(reading(), reading(router=later))["log → sink router/lake"]
    assert (row.state, row.statement) == (BALANCED, "1,090 in the log = 1,000 read + 90 waiting")


def test_records_that_were_held_when_it_began_may_have_been_stored_before() -> None:
    polled = Polled()
    for _ in range(2):
        polled.take(collector=collector(held=5), logd=logd(end=1000))
    for end, state in ((1005, BALANCED), (1004, OFF)):
        found = [polled.take(collector=collector(100), logd=logd(end=end)) for _ in range(2)]
        assert found[1][HOP].state is state


@pytest.mark.parametrize(
    "restart",
    [
        {"collector": collector(3)},
        {"collector": collector(600, started_ms=21)},
        {"collector": collector(600, workers_started_ms=(20, 30))},
        {"logd": logd(end=10)},
        {"collector-2": collector()},
    ],
)
def test_after_a_restart_the_comparison_begins_again(restart: Mapping[str, Any]) -> None:
    polled = Polled()
    polled.take()
    assert [polled.take()[HOP].state for _ in range(2)] == [BALANCED, BALANCED]
    states = [polled.take(**restart) for _ in range(3)]
    hops = [row for found in states for row in found.values() if row.stage == "collectors → log"]
    first, _, last = hops
    assert first.state is UNKNOWN
    assert "begins again" in first.note
    assert last.state is BALANCED


@pytest.mark.parametrize("workers_started_ms", [(), (20, 25)])
def test_a_restart_between_two_readings_hides_no_later_loss(
    workers_started_ms: tuple[int, ...],
) -> None:
    """The collector had delivered nothing at the start, so its count does not fall."""
    polled = Polled()
    first: dict[str, Any] = {"workers_started_ms": workers_started_ms}
    for delivered, end in ((0, 1000), (0, 1000), (500, 1500)):
        polled.take(collector=collector(delivered, **first), logd=logd(end=end))
    again: dict[str, Any] = {
        "started_ms": 21,
        "workers_started_ms": tuple(it + 9 for it in workers_started_ms),
    }
    for _ in range(2):
        polled.take(collector=collector(0, **again), logd=logd(end=1500))
    lost = {"collector": collector(300, **again), "logd": logd(end=1600)}
    row = [polled.take(**lost)[HOP] for _ in range(2)][1]
    assert (row.state, row.difference) == (OFF, 200), row.statement


def test_records_that_a_restarted_collector_meets_again_are_not_missing() -> None:
    """It reads a file again that it had delivered, and sends nothing of it."""
    polled = Polled()
    again: dict[str, Any] = {"started_ms": 21}
    for _ in range(2):
        polled.take(collector=collector(0, **again), logd=logd(end=1000))
    for repeated, missing in ((50, 0), (48, 2)):
        met = {"collector": collector(50, repeated=repeated, **again), "logd": logd(end=1000)}
        row = [polled.take(**met)[HOP] for _ in range(2)][1]
        assert (row.difference, row.state) == (missing, OFF if missing else BALANCED)
    both = reading(collector=collector(140, repeated=50))
    assert rows(both, both)[HOP].statement == "90 delivered = 90 stored"


def answers(at_ns: int, **asked_ns: int) -> list[Answer]:
    """An answer of each part, asked for at its own time."""
    return [
        Answer(part, status, "", asked_ns.get(part, at_ns))
        for part, status in reading().statuses.items()
    ]


def test_a_reading_is_complete_once_every_part_was_asked_after_the_one_before() -> None:
    account = Account()
    account.look(answers(5), now_ns=10)
    first = account.rows
    assert {row.state for row in first if row.stage == "collectors → log"} == {UNKNOWN}
    account.look(answers(20, logd=9), now_ns=30)
    assert account.rows is first, "logd was asked before the first reading was complete"
    account.look(answers(20), now_ns=40)
    assert worst(account.rows) is BALANCED


def test_a_part_whose_last_question_failed_counts_as_silent() -> None:
    account = Account()
    away = replace(answers(5)[0], problem="no answer", asked_ns=0)
    account.look([away, *answers(5)[1:]], now_ns=10)
    assert [row.statement for row in account.rows if row.is_silent] == ["not asked: no answer"]


def test_a_third_party_sink_without_figures_is_read_all_the_same() -> None:
    status = {"component": "router", "stages": [{"name": "sink/x", "sent": "many"}, 5]}
    assert SinkFigures.read(status)["x"].received == 0
